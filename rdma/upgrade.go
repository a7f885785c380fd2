package rdma

import (
	"fmt"
	"sync/atomic"
	"time"

	"downbeat.dev/rdma/stream"
)

// Verbs are set up over a peer's byte stream, which has authenticated both ends and stays: it carries what verbs
// cannot, and takes over when a queue pair fails.
//
//	connector → acceptor: frameVerbs{offer, its end}
//	acceptor → connector: frameVerbs{accept, its end} or {refuse, why}
//	either: frameVerbs{broken, why}; the connector offers again after a while

// upgrade is the state of a conn's set-up of verbs.
type upgrade struct {
	conn      *conn
	settingUp atomic.Bool  // an offered queue pair is being made
	again     atomic.Int32 // number of repeated offers
	answer    chan error   // to an offer
}

// tellAnswer passes an answer to the goroutine that waits for it, if there is one.
func (u *upgrade) tellAnswer(err error) {
	select {
	case u.answer <- err:
	default:
	}
}

// setUp acts on a set-up frame.
func (u *upgrade) setUp(body []byte) error {
	s, err := stream.ParseSetup(body)
	if err != nil {
		return err
	}

	// Only the connecting end offers, so the two never offer to each other at once.
	c, n := u.conn, u.conn.peer.node
	if s.Op != stream.SetupBroken && c.dialer == (s.Op == stream.SetupOffer) || s.Op != stream.SetupOffer && n.verbs == nil {
		return fmt.Errorf("%w: verbs set-up %d from the wrong end", ErrProtocol, s.Op)
	}

	switch s.Op {
	case stream.SetupOffer:
		return u.acceptOffer(s)
	case stream.SetupAccept:
		u.tellAnswer(n.verbs.accepted(c, s))
	case stream.SetupRefuse:
		n.verbs.refusedPair(c)
		u.tellAnswer(fmt.Errorf("%w: the peer: %s", ErrNotSupported, s.Why))
	case stream.SetupBroken:
		(*c.direct.Load()).broken(s.Why)
	}
	return nil
}

// acceptOffer accepts a queue pair, or refuses it if there are no verbs.
func (u *upgrade) acceptOffer(s stream.Setup) error {
	c, n := u.conn, u.conn.peer.node
	if n.verbs == nil {
		c.out.sendSetup(stream.Setup{Op: stream.SetupRefuse, Why: n.noVerbs.Error()})
		return nil
	}
	if c.name() != "tcp" || !u.settingUp.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: a second queue pair", ErrProtocol)
	}

	// Making a pair takes milliseconds, too long for the loop.
	if !n.spawn(func() { n.verbs.acceptPair(c, s); u.settingUp.Store(false) }) {
		return ErrClosed
	}
	return nil
}

// offerPair offers a queue pair and waits for the answer.
func (u *upgrade) offerPair() error {
	c, n := u.conn, u.conn.peer.node
	if err := n.verbs.offer(c); err != nil {
		return err
	}

	// Without an answer the device must forget its end of the pair.
	select {
	case err := <-u.answer:
		return err
	case <-c.peer.gone:
		n.verbs.refusedPair(c)
		return c.peer.Err()
	case <-n.ctx.Done():
		n.verbs.refusedPair(c)
		return ErrClosed
	case <-time.After(n.cfg.Stall):
		n.verbs.refusedPair(c)
		return fmt.Errorf("%w: no answer to a queue pair within %v", ErrPeerLost, n.cfg.Stall)
	}
}

// offerAgain makes the connector try verbs again after a pair failed.
func (u *upgrade) offerAgain() {
	// A pair that keeps failing is not worth the reads that are done twice.
	c, n := u.conn, u.conn.peer.node
	if !c.dialer || u.again.Add(1) > upgradesMax {
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

		if err := u.offerPair(); err != nil {
			n.cfg.Logger.Warn("verbs not restored", "peer", c.peer.addr, "err", err)
			u.offerAgain()
			return
		}
		n.cfg.Logger.Info("verbs restored", "peer", c.peer.addr)
	})
}

const (
	upgradeAgain = time.Second // from a failed queue pair to the next offer
	upgradesMax  = 5           // offers to one peer before verbs are given up
)
