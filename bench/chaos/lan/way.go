//go:build linux

package lan

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Harm is the treatment of packets from one host to another. The zero value does nothing.
type Harm struct {
	Cut       bool          // no packet passes, and no peer is notified
	Delay     time.Duration // of each packet
	Rate      int           // bytes per second; 0: unlimited
	Loss      float64       // share of lost packets
	Duplicate float64       // share of duplicated packets
}

// backlogMax is the number of bytes queued at a slow way before packets are lost, as in a router.
const backlogMax = 256 << 10

// way carries packets in one direction and applies a Harm.
type way struct {
	harm    Harm
	deliver func([]byte)

	mu      sync.Mutex // guards the fields below
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

// Set applies a Harm from one host to another from now on. Packets under way with the previous harm still arrive,
// unless the way is cut.
func (n *Network) Set(from, to int, h Harm) {
	var w *way
	if h != (Harm{}) {
		w = &way{harm: h, deliver: func(b []byte) { n.deliverPacket(to, b) }, random: n.newRandom(from, to)}
		w.changed = sync.NewCond(&w.mu)
		n.running.Go(w.runWay)
	}

	// Install the new harm before closing the old way, so that no packet passes without harm.
	if old := n.ways[from][to].Swap(w); old != nil {
		old.closeWay()
	}
}

// Both sets the harm of both directions between two hosts.
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

	// A full queue loses packets only if a rate limits it; otherwise the queue is as long as the delay.
	if w.harm.Loss > 0 && w.random.Float64() < w.harm.Loss || w.backlog+len(packet) > backlogMax && w.harm.Rate > 0 {
		return
	}
	copies := 1
	if w.harm.Duplicate > 0 && w.random.Float64() < w.harm.Duplicate {
		copies = 2
	}

	for range copies {
		// A packet leaves after those before it; an idle way starts at once.
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

		// Release the lock while the packet waits for its time.
		w.mu.Unlock()
		time.Sleep(time.Until(next.due))
		w.deliver(next.bytes)
		w.mu.Lock()
		w.backlog -= len(next.bytes)
	}
}

// closeWay delivers the packets under way at once and ends the way. A slow way drops its backlog.
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
