//go:build rdma && linux && cgo

package rdma

import (
	"fmt"

	"downbeat.dev/rdma/stream"
)

// use lets reads go over a connected pair, unless the peer was dropped meanwhile.
func (p *verbsPair) use() error {
	p.conn.mu.Lock()
	dropped := p.conn.dropped()
	if !dropped {
		p.conn.direct.Store(&p.direct)
	}
	p.conn.mu.Unlock()

	if dropped {
		p.close(ErrClosed)
		return ErrClosed
	}
	return nil
}

// leave takes a broken pair out of use.
func (p *verbsPair) leave() {
	var d direct = streamOnly{fallen: true}
	p.conn.direct.CompareAndSwap(&p.direct, &d)
}

// offer makes a queue pair and tells the peer of it.
func (d *verbsDevice) offer(c *conn) error {
	p, err := d.newPair(c)
	if err != nil {
		return err
	}

	// The offer is noted before the peer hears of it: the answer may come at once.
	d.mu.Lock()
	d.offers[c] = p
	d.mu.Unlock()
	c.sendSetup(p.frame(stream.SetupOffer))
	return nil
}

// withdraw forgets an offer that got no good answer.
func (d *verbsDevice) withdraw(c *conn) *verbsPair {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.offers[c]
	delete(d.offers, c)
	return p
}

// accepted ends the connector's set-up.
func (d *verbsDevice) accepted(c *conn, s stream.Setup) error {
	p := d.withdraw(c)
	if p == nil {
		return fmt.Errorf("%w: queue pair accepted that was not offered", ErrProtocol)
	}
	if err := p.connect(s.End); err != nil {
		p.close(err)
		c.sendSetup(stream.Setup{Op: stream.SetupBroken, Why: err.Error()})
		return err
	}
	return p.use()
}

func (d *verbsDevice) refused(c *conn) {
	if p := d.withdraw(c); p != nil {
		p.close(ErrClosed)
	}
}

// accept is the acceptor's side; it may take milliseconds and runs apart from the loop.
func (d *verbsDevice) accept(c *conn, s stream.Setup) {
	p, err := d.newPair(c)

	if err == nil {
		if err = p.connect(s.End); err != nil {
			p.close(err)
		} else {
			err = p.use()
		}
	}

	if err != nil {
		c.sendSetup(stream.Setup{Op: stream.SetupRefuse, Why: err.Error()})
		return
	}
	c.sendSetup(p.frame(stream.SetupAccept))
}

// broken is the peer's word that its end of the pair failed.
func (p *verbsPair) broken(why string) { p.fail("peer: "+why, false) }
