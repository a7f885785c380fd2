//go:build rdma && linux && cgo

package rdma

import (
	"fmt"

	"downbeat.dev/rdma/stream"
)

// use makes reads go over a connected pair, unless the peer was dropped meanwhile.
func (p *verbsPair) use() error {
	p.conn.out.mu.Lock()
	dropped := p.conn.dropped()
	if !dropped {
		p.conn.direct.Store(&p.direct)
	}
	p.conn.out.mu.Unlock()

	if dropped {
		p.closeDirect(ErrClosed)
		return ErrClosed
	}
	return nil
}

// leaveUse takes a broken pair out of use.
func (p *verbsPair) leaveUse() {
	var d direct = streamOnly{fallen: true}
	p.conn.direct.CompareAndSwap(&p.direct, &d)
}

// offer makes a queue pair and offers it to the peer.
func (d *verbsDevice) offer(c *conn) error {
	p, err := d.newPair(c)
	if err != nil {
		return err
	}

	// Recorded before the peer hears of it, as the answer may come at once.
	d.mu.Lock()
	d.offers[c] = p
	d.mu.Unlock()
	c.out.sendSetup(p.frame(stream.SetupOffer))
	return nil
}

// withdrawOffer removes an offer that was not accepted.
func (d *verbsDevice) withdrawOffer(c *conn) *verbsPair {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.offers[c]
	delete(d.offers, c)
	return p
}

// accepted completes the connector's set-up.
func (d *verbsDevice) accepted(c *conn, s stream.Setup) error {
	p := d.withdrawOffer(c)
	if p == nil {
		return fmt.Errorf("%w: queue pair accepted that was not offered", ErrProtocol)
	}
	if err := p.connect(s.End); err != nil {
		p.closeDirect(err)
		c.out.sendSetup(stream.Setup{Op: stream.SetupBroken, Why: err.Error()})
		return err
	}
	return p.use()
}

func (d *verbsDevice) refusedPair(c *conn) {
	if p := d.withdrawOffer(c); p != nil {
		p.closeDirect(ErrClosed)
	}
}

// acceptPair is the acceptor's side; it may take milliseconds and runs beside the loop.
func (d *verbsDevice) acceptPair(c *conn, s stream.Setup) {
	p, err := d.newPair(c)

	if err == nil {
		if err = p.connect(s.End); err != nil {
			p.closeDirect(err)
		} else {
			err = p.use()
		}
	}

	if err != nil {
		c.out.sendSetup(stream.Setup{Op: stream.SetupRefuse, Why: err.Error()})
		return
	}
	c.out.sendSetup(p.frame(stream.SetupAccept))
}

// broken receives the peer's report that its end of the pair failed.
func (p *verbsPair) broken(why string) { p.failPair("peer: "+why, false) }
