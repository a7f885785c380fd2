package rdma

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Verbs are set up over a peer's byte stream, which has proved both ends and stays: it carries what
// verbs cannot, and takes over when a queue pair breaks.
//
//	connector → acceptor: frameVerbs{offer, its end}
//	acceptor → connector: frameVerbs{accept, its end} or {refuse, why}
//	either: frameVerbs{broken, why}; the connector offers again after a while

type verbsOp uint8

const (
	verbsOffer verbsOp = 1 + iota
	verbsAccept
	verbsRefuse
	verbsBroken
)

// verbsEnd is what one end of a queue pair tells the other.
type verbsEnd struct {
	gid                [16]byte
	qpn, psn, lid, mtu uint32
	readsIn, readsOut  uint32
}

type verbsFrame struct {
	op  verbsOp
	end verbsEnd
	why string // at most verbsWhyMax bytes
}

const verbsWhyMax = verbsBytes - 8 - 40

func (v verbsFrame) append(b []byte) []byte {
	why := v.why[:min(len(v.why), verbsWhyMax)]
	b = frame{body: verbsBytes, kind: frameVerbs}.append(b)
	b = append(b, byte(v.op), byte(len(why)), 0, 0, 0, 0, 0, 0)
	b = append(b, v.end.gid[:]...)
	for _, x := range []uint32{v.end.qpn, v.end.psn, v.end.lid, v.end.mtu, v.end.readsIn, v.end.readsOut} {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	b = append(b, why...)
	return append(b, make([]byte, verbsWhyMax-len(why))...)
}

func parseVerbs(b []byte) (verbsFrame, error) {
	v := verbsFrame{op: verbsOp(b[0])}
	if v.op < verbsOffer || v.op > verbsBroken || int(b[1]) > verbsWhyMax {
		return v, fmt.Errorf("%w: verbs set-up %d with %d bytes of reason", ErrProtocol, b[0], b[1])
	}
	copy(v.end.gid[:], b[8:])
	for i, x := range []*uint32{&v.end.qpn, &v.end.psn, &v.end.lid, &v.end.mtu, &v.end.readsIn, &v.end.readsOut} {
		*x = binary.LittleEndian.Uint32(b[24+4*i:])
	}
	if v.end.qpn>>24 != 0 || v.end.psn>>24 != 0 || v.end.lid>>16 != 0 || v.end.mtu > 5 {
		return v, fmt.Errorf("%w: queue pair %+v", ErrProtocol, v.end)
	}
	v.why = string(b[48 : 48+int(b[1])])
	return v, nil
}

// sendVerbs queues a set-up frame.
func (c *conn) sendVerbs(v verbsFrame) {
	c.mu.Lock()
	if c.err == nil {
		v.append(c.out.reserve(headerBytes + verbsBytes)[:0])
		c.flush()
	}
	c.mu.Unlock()
}

// setUp acts on a set-up frame.
func (c *conn) setUp(body []byte) error {
	v, err := parseVerbs(body)
	if err != nil {
		return err
	}
	n := c.peer.node
	if v.op != verbsBroken && c.dialer == (v.op == verbsOffer) || v.op != verbsOffer && n.verbs == nil {
		return fmt.Errorf("%w: verbs set-up %d from the wrong end", ErrProtocol, v.op)
	}
	switch v.op {
	case verbsOffer:
		if n.verbs == nil {
			c.sendVerbs(verbsFrame{op: verbsRefuse, why: n.noVerbs.Error()})
			return nil
		}
		if c.direct.Load() != nil || !c.settingUp.CompareAndSwap(false, true) {
			return fmt.Errorf("%w: a second queue pair", ErrProtocol)
		}
		if !n.spawn(func() { n.verbs.accept(c, v); c.settingUp.Store(false) }) {
			return ErrClosed
		}
	case verbsAccept:
		c.answered(n.verbs.accepted(c, v))
	case verbsRefuse:
		n.verbs.refused(c)
		c.answered(fmt.Errorf("%w: the peer: %s", ErrNotSupported, v.why))
	case verbsBroken:
		n.verbs.broken(c, v.why)
	}
	return nil
}

// answered tells the one who waits for an offer's answer, if anybody does.
func (c *conn) answered(err error) {
	select {
	case c.answer <- err:
	default:
	}
}

// upgrade offers a queue pair and waits for the answer.
func (n *Node) upgrade(c *conn) error {
	if err := n.verbs.offer(c); err != nil {
		return err
	}
	select {
	case err := <-c.answer:
		return err
	case <-c.peer.gone:
		n.verbs.refused(c)
		return c.peer.Err()
	case <-time.After(n.cfg.Stall):
		n.verbs.refused(c)
		return fmt.Errorf("%w: no answer to a queue pair within %v", ErrPeerLost, n.cfg.Stall)
	}
}

// offerAgain has the connector try verbs again after a pair broke.
func (c *conn) offerAgain() {
	n := c.peer.node
	if !c.dialer || c.upgrades.Add(1) > upgradesMax {
		return
	}
	n.spawn(func() {
		select {
		case <-time.After(upgradeAgain):
		case <-n.ctx.Done():
			return
		case <-c.peer.gone:
			return
		}
		if err := n.upgrade(c); err != nil {
			n.cfg.Logger.Warn("verbs not restored", "peer", c.peer.addr, "err", err)
			c.offerAgain()
			return
		}
		n.cfg.Logger.Info("verbs restored", "peer", c.peer.addr)
	})
}

// reachVerbs connects by TCP and moves reads to a queue pair. Where tcp is allowed too, a peer that
// cannot have one stays a TCP peer.
func (n *Node) reachVerbs(addr, hostport string) (*Peer, error) {
	if n.verbs == nil {
		return nil, n.noVerbs
	}
	p, err := n.reachTCP(addr, hostport)
	if err != nil {
		return nil, err
	}
	err = n.upgrade(p.conn)
	if err != nil && n.allows("tcp") {
		n.cfg.Logger.Info("no verbs with a peer", "peer", addr, "err", err)
		return p, nil
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// granted is the body of frameGranted: where a segment's slots lie, and the right to read it.
type grantedBody struct {
	index, stride, slots int
	rkey                 uint32 // verbs
	base                 uint64 // verbs: the segment's address
}

func (g grantedBody) append(b []byte, key uint64) []byte {
	b = frame{body: grantedBytes, kind: frameGranted, id: key}.append(b)
	for _, v := range []int{g.index, g.stride, g.slots, 0} {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(g.rkey))
	return binary.LittleEndian.AppendUint64(b, g.base)
}

// parseGranted checks the layout by itself; who maps or reads it checks it against the memory.
func parseGranted(b []byte) (grantedBody, error) {
	var v [4]int
	for i := range v {
		v[i] = int(binary.LittleEndian.Uint32(b[4*i:]))
	}
	g := grantedBody{index: v[0], stride: v[1], slots: v[2],
		rkey: uint32(binary.LittleEndian.Uint64(b[16:])), base: binary.LittleEndian.Uint64(b[24:])}
	if g.index >= segmentsMax || g.slots < 1 || g.slots > slotsMax || g.stride < headBytes+classMin || g.stride > headBytes+BufferMax || g.stride%8 != 0 {
		return g, fmt.Errorf("%w: segment %+v", ErrProtocol, g)
	}
	return g, nil
}

func (g grantedBody) bytes() int { return g.stride * g.slots }

func layoutOf(s *segment) grantedBody {
	return grantedBody{index: s.index, stride: s.stride, slots: len(s.bufs)}
}

const (
	upgradeAgain = time.Second // from a broken queue pair to the next offer
	upgradesMax  = 5           // offers to one peer before verbs are given up
)
