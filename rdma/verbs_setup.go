//go:build rdma && linux && cgo

package rdma

import "fmt"

// verbs returns the peer's queue pair, if reads go over one.
func (c *conn) verbs() (*verbsPair, bool) {
	d := c.direct.Load()
	if d == nil {
		return nil, false
	}
	p, ok := (*d).(*verbsPair)
	return p, ok
}

// use lets reads go over a connected pair, unless the peer was dropped meanwhile.
func (p *verbsPair) use() error {
	var d directReader = p
	p.conn.mu.Lock()
	dropped := p.conn.dropped
	if !dropped {
		p.conn.direct.Store(&d)
	}
	p.conn.mu.Unlock()
	if dropped {
		p.close(ErrClosed)
		return ErrClosed
	}
	return nil
}

// clearDirect takes a broken pair out of use.
func (c *conn) clearDirect(p *verbsPair) {
	if d := c.direct.Load(); d != nil && *d == directReader(p) {
		c.direct.CompareAndSwap(d, nil)
	}
}

// offer makes a queue pair and tells the peer of it.
func (d *verbsDevice) offer(c *conn) error {
	p, err := d.newPair(c)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.offers[c] = p
	d.mu.Unlock()
	c.sendVerbs(p.frame(verbsOffer))
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
func (d *verbsDevice) accepted(c *conn, v verbsFrame) error {
	p := d.withdraw(c)
	if p == nil {
		return fmt.Errorf("%w: queue pair accepted that was not offered", ErrProtocol)
	}
	if err := p.connect(v.end); err != nil {
		p.close(err)
		c.sendVerbs(verbsFrame{op: verbsBroken, why: err.Error()})
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
func (d *verbsDevice) accept(c *conn, v verbsFrame) {
	p, err := d.newPair(c)
	if err == nil {
		if err = p.connect(v.end); err != nil {
			p.close(err)
		} else {
			err = p.use()
		}
	}
	if err != nil {
		c.sendVerbs(verbsFrame{op: verbsRefuse, why: err.Error()})
		return
	}
	c.sendVerbs(p.frame(verbsAccept))
}

// broken is the peer's word that its end of the pair failed.
func (d *verbsDevice) broken(c *conn, why string) {
	if p, ok := c.verbs(); ok {
		p.fail("peer: "+why, false)
	}
}
