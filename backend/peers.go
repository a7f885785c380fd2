package backend

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

const (
	connectMax        = 2 * time.Second        // for connecting to a frontend
	connectPause      = 100 * time.Millisecond // between failed attempts; reads fail at once meanwhile
	refusedEvery      = time.Minute            // between log lines about a frontend that cannot be reached
	waitingMax        = 1024                   // groups that wait for one frontend's connection
	queuedMessagesMax = 1 << 14                // messages that wait for one frontend's connection
	queuedBytesMax    = 16 << 20               // bytes of these
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

	mu             sync.Mutex    // guards the fields below
	trusted        time.Time     // when it was last suspect and answered
	pause          time.Duration // before the first probe, since it last became suspect
	said           time.Time     // of the last log line about that
	doubts         int           // times since
	badRows        int           // requests that failed alone since the last log line about them
	badSaid        time.Time     // of that line
	refusals       int           // failed attempts to connect since the last success
	warned         time.Time     // of the last log line about these
	connecting     bool
	began          time.Time // of the last attempt
	tried          time.Time // its end, if it failed
	waiting        []*group
	queuedMessages [][]byte // messages to send once connected
	queuedBytes    int      // of these
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
