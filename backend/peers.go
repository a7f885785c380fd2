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
	connectPause = 100 * time.Millisecond // between attempts that fail; reads fail at once meanwhile
	waitingMax   = 1024                   // groups that wait for one frontend's connection
	owedMax      = 1 << 14                // reasons that do
)

var errNoConnection = errors.New("frontend not connected")

// peers are the frontends that the scheduler has named in this session.
type peers struct {
	node *rdma.Node
	log  *slog.Logger
	byID map[uint32]*peer // the link's goroutine's
	ctx  context.Context  // ends all connecting
	wait sync.WaitGroup   // connecting goroutines
}

// peer is one frontend. Orders keep it while they run, whatever the scheduler says next.
type peer struct {
	all  *peers
	addr string
	conn atomic.Pointer[rdma.Peer] // nil while not connected

	mu         sync.Mutex
	connecting bool
	tried      time.Time // the last attempt's end, if it failed
	waiting    []*group
	owed       []wire.ResultHeader // reasons to tell once connected
}

// find returns a frontend, nil if the scheduler never named it. The link's goroutine only.
func (p *peers) find(id uint32) *peer { return p.byID[id] }

// forget starts a session. The link's goroutine only.
func (p *peers) forget() { clear(p.byID) }

// tell takes the scheduler's news of frontends. The link's goroutine only.
func (p *peers) tell(news []wire.Peer) {
	for _, n := range news {
		if n.DataAddr == "" {
			delete(p.byID, n.Frontend)
			continue
		}
		if f := p.byID[n.Frontend]; f != nil && f.addr == n.DataAddr {
			continue
		}
		f := &peer{all: p, addr: n.DataAddr}
		p.byID[n.Frontend] = f
		f.mu.Lock()
		f.connect()
		f.mu.Unlock()
	}
}

// read posts a group's reads, now or as soon as the frontend is connected.
func (f *peer) read(g *group) {
	if c := f.conn.Load(); c != nil {
		g.post(c)
		return
	}
	f.mu.Lock()
	c := f.conn.Load() // connect sets it under mu
	switch {
	case c != nil:
	case !f.connecting && time.Since(f.tried) < connectPause, len(f.waiting) >= waitingMax, f.all.ctx.Err() != nil:
		f.mu.Unlock()
		g.refuse()
		return
	default:
		f.waiting = append(f.waiting, g)
		f.connect()
	}
	f.mu.Unlock()
	if c != nil {
		g.post(c)
	}
}

// withdraw ends a group that still waits for the connection; one that is being read goes on.
func (f *peer) withdraw(g *group) {
	f.mu.Lock()
	i := slices.Index(f.waiting, g)
	if i >= 0 {
		f.waiting = slices.Delete(f.waiting, i, i+1)
	}
	f.mu.Unlock()
	if i >= 0 {
		g.refuse()
	}
}

// refuse ends a group without reading.
func (g *group) refuse() {
	g.chains.Store(1)
	g.finish(errNoConnection)
}

// connect starts an attempt unless one is under way. f.mu is held.
func (f *peer) connect() {
	if f.connecting {
		return
	}
	f.connecting = true
	f.all.wait.Add(1)
	go func() {
		defer f.all.wait.Done()
		ctx, cancel := context.WithTimeout(f.all.ctx, connectMax)
		defer cancel()
		c, err := f.all.node.Connect(ctx, f.addr)
		if err != nil && f.all.ctx.Err() == nil {
			f.all.log.Warn("frontend cannot be reached", "addr", f.addr, "err", err)
		}
		f.connected(c, err)
	}()
}

// connected ends an attempt: what waited is read, or fails.
func (f *peer) connected(c *rdma.Peer, err error) {
	f.mu.Lock()
	f.connecting = false
	if err != nil {
		f.tried = time.Now()
	} else {
		f.conn.Store(c)
	}
	waiting, owed := f.waiting, f.owed
	f.waiting, f.owed = nil, nil
	f.mu.Unlock()
	for _, g := range waiting {
		if err != nil {
			g.refuse()
		} else {
			g.post(c)
		}
	}
	for _, h := range owed {
		if err == nil {
			_ = c.Send(h.Append(nil)) // a lost frontend ends its requests itself
		}
	}
}

// owe tells a reason as soon as the frontend is connected. It reports false if no connection is
// under way.
func (f *peer) owe(h wire.ResultHeader) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.connecting || f.conn.Load() != nil || len(f.owed) >= owedMax {
		return false
	}
	f.owed = append(f.owed, h)
	return true
}

// failed drops a connection that was lost, so that the next read connects anew.
func (f *peer) failed(err error) {
	if c := f.conn.Load(); c != nil && c.Err() != nil {
		f.conn.CompareAndSwap(c, nil)
		f.all.log.Debug("frontend lost", "addr", f.addr, "err", err)
	}
}

// send sends a message to the frontend, if it is connected.
func (f *peer) send(parts [][]byte) error {
	c := f.conn.Load()
	if c == nil {
		return errNoConnection
	}
	if err := c.Send(parts...); err != nil {
		f.failed(err)
		return fmt.Errorf("send to %s: %w", f.addr, err)
	}
	return nil
}
