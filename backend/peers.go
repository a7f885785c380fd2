package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

const (
	connectMax   = 2 * time.Second        // for connecting to a frontend
	connectPause = 100 * time.Millisecond // between failed attempts; reads fail at once meanwhile
	refusedEvery = time.Minute            // between log lines about a frontend that cannot be reached
	waitingMax   = 1024                   // groups that wait for one frontend's connection
	owedMax      = 1 << 14                // messages that wait for one frontend's connection
	owedBytesMax = 16 << 20               // bytes of these
)

var errNoConnection = errors.New("frontend not connected")

// peers are the nodes that the scheduler has announced since the link was opened.
type peers struct {
	node *rdma.Node
	log  *slog.Logger
	byID map[uint32]*peer // frontends; owned by the link's goroutine
	// nodes are backends by number; guarded by nodesMu. They hold few inputs, so they are connected on first use.
	nodes   map[uint32]*peer
	nodesMu sync.Mutex
	own     atomic.Uint32   // this backend's number; 0: none assigned
	ctx     context.Context // its end stops all connecting
	wait    sync.WaitGroup  // connecting and probing goroutines

	suspects atomic.Int64  // frontends that are suspect now
	doubts   atomic.Uint64 // number of times that a frontend became suspect
}

// peer is a node from which inputs are read or which receives answers: a frontend, or another backend. Orders keep it
// while they run, whatever the scheduler announces next.
type peer struct {
	all  *peers
	addr string
	// staged reports that it understands results with stages.
	staged bool
	conn   atomic.Pointer[rdma.Peer] // nil while not connected

	suspect atomic.Bool  // nothing is read from it until it answers, see doubt
	left    atomic.Bool  // the scheduler no longer announces it
	usual   atomic.Int64 // ns that long reads of it take

	mu         sync.Mutex    // guards the fields below
	trusted    time.Time     // when it was last suspect and answered
	pause      time.Duration // before the first probe, since it last became suspect
	said       time.Time     // of the last log line about that
	doubts     int           // times since
	badRows    int           // requests that failed alone since the last log line about them
	badSaid    time.Time     // of that line
	refusals   int           // failed attempts to connect since the last success
	warned     time.Time     // of the last log line about these
	connecting bool
	began      time.Time // of the last attempt
	tried      time.Time // its end, if it failed
	waiting    []*group
	owed       [][]byte // messages to send once connected
	owedBytes  int      // of these
}

// findPeer returns a frontend; nil if the scheduler never named it. Only the link's goroutine calls it.
func (p *peers) findPeer(id uint32) *peer { return p.byID[id] }

// findNode returns a backend by its number; nil if there is none.
func (p *peers) findNode(number uint32) *peer {
	p.nodesMu.Lock()
	defer p.nodesMu.Unlock()
	return p.nodes[number]
}

// forgetPeers starts a session. Only the link's goroutine calls it.
func (p *peers) forgetPeers() {
	p.nodesMu.Lock()
	defer p.nodesMu.Unlock()
	for _, known := range []map[uint32]*peer{p.byID, p.nodes} {
		for _, f := range known {
			f.left.Store(true)
		}
		clear(known)
	}
	p.own.Store(0)
}

// tellPeers takes the scheduler's announcements of nodes. Only the link's goroutine calls it.
func (p *peers) tellPeers(news []wire.Peer) {
	p.nodesMu.Lock()
	defer p.nodesMu.Unlock()
	for _, n := range news {
		known, id := p.byID, n.Frontend
		if n.Node != 0 {
			known, id = p.nodes, n.Node
			p.noteOwn(n)
		}

		old := known[id]
		if old != nil && old.addr == n.DataAddr && old.staged == n.Staged {
			continue
		}

		// Orders in progress keep the old one until they end.
		if old != nil {
			old.left.Store(true)
			delete(known, id)
		}

		// A node without an address has left.
		if n.DataAddr == "" {
			continue
		}

		f := &peer{all: p, addr: n.DataAddr, staged: n.Staged}
		known[id] = f
		if n.Node != 0 {
			continue
		}

		// A frontend is connected at once, so that the first batch does not wait for it.
		f.mu.Lock()
		f.startConnecting()
		f.mu.Unlock()
	}
}

// readGroup posts a group's reads, now or as soon as the frontend is connected. It reads nothing from a suspect
// frontend.
func (f *peer) readGroup(g *group) {
	if f.suspect.Load() {
		g.refuseReads(errSuspect)
		return
	}

	if c := f.conn.Load(); c != nil {
		if f.doubtStalled(g, c.Stalled()) {
			g.refuseReads(errSuspect)
			return
		}
		g.postChains(c)
		return
	}

	// Check again under the lock: the connection may have come in between.
	f.mu.Lock()
	c := f.conn.Load() // set under mu
	switch {
	case c != nil:
	case !f.connecting && time.Since(f.tried) < connectPause, len(f.waiting) >= waitingMax, f.all.ctx.Err() != nil:
		f.mu.Unlock()
		g.refuseReads(errNoConnection)
		return
	default:
		f.startConnecting()

		// Wait for a new frontend. One that an attempt did not reach, or not for long, may never be reached:
		// meanwhile another backend can serve the requests that would wait here.
		if f.refusals > 0 || time.Since(f.began) > overdueConnect {
			f.mu.Unlock()
			g.refuseReads(errNoConnection)
			return
		}
		f.waiting = append(f.waiting, g)
	}
	f.mu.Unlock()

	if c != nil {
		g.postChains(c)
	}
}

// withdrawGroup ends a group that still waits for the connection; one that is being read continues.
func (f *peer) withdrawGroup(g *group) {
	f.mu.Lock()
	i := slices.Index(f.waiting, g)

	// Without the lock: a group that ends may free slots and post other reads.
	if i >= 0 {
		f.waiting = slices.Delete(f.waiting, i, i+1)
	}
	f.mu.Unlock()
	if i >= 0 {
		g.refuseReads(errNoConnection)
	}
}

// refuseReads ends a group without reading.
func (g *group) refuseReads(why error) {
	g.chains.Store(1)
	g.finishOne(why)
}

// startConnecting starts an attempt unless one is in progress. f.mu is held.
func (f *peer) startConnecting() {
	if f.connecting {
		return
	}
	f.connecting, f.began = true, time.Now()
	f.all.wait.Add(1)
	go func() {
		defer f.all.wait.Done()
		ctx, cancel := context.WithTimeout(f.all.ctx, connectMax)
		defer cancel()
		c, err := f.all.node.Connect(ctx, f.addr)
		if err != nil {
			f.notReached(err)
		}
		f.noteConnected(c, err)
	}()
}

// noteConnected ends an attempt: waiting reads are posted, or fail.
func (f *peer) noteConnected(c *rdma.Peer, err error) {
	f.mu.Lock()
	f.connecting = false

	if err != nil {
		f.tried = time.Now()
	} else {
		f.refusals = 0
		f.conn.Store(c)
	}

	// Taken under the lock: later ones find the connection, or start another attempt.
	waiting, owed := f.waiting, f.owed
	f.waiting, f.owed, f.owedBytes = nil, nil, 0
	f.mu.Unlock()

	for _, g := range waiting {
		if err != nil {
			g.refuseReads(errNoConnection)
		} else {
			g.postChains(c)
		}
	}

	for _, message := range owed {
		if err == nil {
			_ = c.Send(message) // a lost frontend ends its requests itself
		}
	}
}

// notReached records a failed attempt to connect, and logs the first and some of the following.
func (f *peer) notReached(err error) {
	// Closing ends attempts, which says nothing about the frontend.
	if f.all.ctx.Err() != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refusals++
	if f.refusals == 1 || time.Since(f.warned) > refusedEvery {
		f.warned = time.Now()
		f.all.log.Warn("frontend cannot be reached: its requests fail here", "addr", f.addr, "attempts", f.refusals, "err", err)
	}
}

// oweMessage keeps a copy of a message until the frontend is connected. It returns false if no connection is in
// progress, or too much is kept, and returns the connection if it is open by now.
func (f *peer) oweMessage(parts [][]byte) (owed bool, c *rdma.Peer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c = f.conn.Load(); c != nil || !f.connecting || len(f.owed) >= owedMax {
		return false, c
	}

	bytes := 0
	for _, part := range parts {
		bytes += len(part)
	}
	if f.owedBytes+bytes > owedBytesMax {
		return false, nil
	}
	f.owed, f.owedBytes = append(f.owed, slices.Concat(parts...)), f.owedBytes+bytes
	return true, nil
}

// dropLost drops a lost connection, so that the next read connects again.
func (f *peer) dropLost(err error) {
	if c := f.conn.Load(); c != nil && c.Err() != nil {
		// Another goroutine may have reconnected: drop only the lost one.
		f.conn.CompareAndSwap(c, nil)
		f.all.log.Debug("frontend lost", "addr", f.addr, "err", err)
	}
}

// sendMessage sends a message to the frontend, or keeps it for a connection in progress.
func (f *peer) sendMessage(parts [][]byte) error {
	c := f.conn.Load()
	if c == nil {
		var owed bool
		if owed, c = f.oweMessage(parts); owed {
			return nil
		}
	}
	if c == nil {
		return errNoConnection
	}
	if err := c.Send(parts...); err != nil {
		f.dropLost(err)
		return fmt.Errorf("send to %s: %w", f.addr, err)
	}
	return nil
}
