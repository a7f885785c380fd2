//go:build linux

package lan

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Harm is what happens to packets on the way from one host to another. The zero value is none.
type Harm struct {
	Cut       bool          // nothing passes, and nobody is told
	Delay     time.Duration // of each packet
	Rate      int           // bytes a second; 0: no limit
	Loss      float64       // share of packets that are lost
	Duplicate float64       // share of packets that come twice
}

// backlogMax is how many bytes wait at a slow way before packets are lost, as in a router.
const backlogMax = 256 << 10

// way carries packets in one direction, with harm.
type way struct {
	harm    Harm
	deliver func([]byte)

	mu      sync.Mutex // guards what follows
	changed *sync.Cond
	random  *rand.Rand
	queue   []carried
	backlog int
	free    time.Time // when the way can take the next packet
	closed  bool
}

// carried is a packet under way.
type carried struct {
	due   time.Time
	bytes []byte
}

// Set harms the way from one host to another from now on; packets under way with the harm before still arrive,
// unless it is cut.
func (n *Network) Set(from, to int, h Harm) {
	var w *way
	if h != (Harm{}) {
		w = &way{harm: h, deliver: func(b []byte) { n.deliverPacket(to, b) }, random: n.newRandom(from, to)}
		w.changed = sync.NewCond(&w.mu)
		n.running.Go(w.runWay)
	}

	// The new harm holds before the old way ends, so no packet finds the way sound in between.
	if old := n.ways[from][to].Swap(w); old != nil {
		old.closeWay()
	}
}

// Both harms the ways between two hosts, both directions.
func (n *Network) Both(a, b int, h Harm) {
	n.Set(a, b, h)
	n.Set(b, a, h)
}

// takePacket puts a packet on the way.
func (w *way) takePacket(packet []byte) {
	if w.harm.Cut {
		return
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	// A full queue loses packets only where a rate makes it: otherwise the queue is as long as the delay.
	if w.harm.Loss > 0 && w.random.Float64() < w.harm.Loss || w.backlog+len(packet) > backlogMax && w.harm.Rate > 0 {
		return
	}
	copies := 1
	if w.harm.Duplicate > 0 && w.random.Float64() < w.harm.Duplicate {
		copies = 2
	}

	for range copies {
		// A packet leaves when those before it have left; an idle way starts afresh.
		now := time.Now()
		if w.free.Before(now) {
			w.free = now
		}
		if w.harm.Rate > 0 {
			w.free = w.free.Add(time.Duration(len(packet)) * time.Second / time.Duration(w.harm.Rate))
		}
		w.queue = append(w.queue, carried{w.free.Add(w.harm.Delay), append([]byte(nil), packet...)})
		w.backlog += len(packet)
	}
	w.changed.Signal()
}

// runWay delivers packets when they are due, until the way is closed and empty.
func (w *way) runWay() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for len(w.queue) == 0 && !w.closed {
			w.changed.Wait()
		}
		if len(w.queue) == 0 {
			return
		}

		next := w.queue[0]
		w.queue = w.queue[1:]

		// Nobody may wait for the lock while this packet waits for its moment.
		w.mu.Unlock()
		time.Sleep(time.Until(next.due))
		w.deliver(next.bytes)
		w.mu.Lock()
		w.backlog -= len(next.bytes)
	}
}

// closeWay lets what is under way arrive within a moment, and ends the way. A slow way forgets its backlog.
func (w *way) closeWay() {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.closed = true
	// At a low rate the backlog could take minutes to drain.
	if w.harm.Rate > 0 {
		w.queue, w.backlog = nil, 0
	}
	w.changed.Signal()
}
