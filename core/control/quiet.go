package control

import (
	"crypto/tls"
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

// silence tells for how long nothing was heard of a peer, in ticks that come every pingEvery. It counts
// ticks and reads no clock: a process that was stopped, or starved of its processor, ticked as little as
// it read, and so does not blame its peers for its own absence.
type silence struct {
	patience int32         // ticks
	heard    atomic.Uint32 // frames, by the reader

	last  uint32       // heard at the tick before
	ticks atomic.Int32 // in a row with nothing heard; written at ticks
}

// silentFor is for how long nothing was heard.
func (s *silence) silentFor() time.Duration { return time.Duration(s.ticks.Load()) * pingEvery }

// tickLasts is called at every tick. It reports true once nothing was heard in patience ticks.
func (s *silence) tickLasts() bool {
	heard := s.heard.Load()

	// Any frame is a sign of life, not only an answer to a ping.
	if heard != s.last {
		s.last = heard
		s.ticks.Store(0)
		return false
	}
	return s.ticks.Add(1) >= s.patience
}

// watchSilence gives the connection up when the peer is silent. It ends with the writer.
func watchSilence(w *writer, peer *silence) {
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	for {
		select {
		case <-w.done:
			return
		case <-t.C:
		}
		if peer.tickLasts() {
			w.closeFor(fmt.Errorf("%w: nothing heard for %v", ErrQuiet, peer.silentFor()))
			return
		}
	}
}

// clientTLS wraps conn when t asks for TLS; the server's name defaults to the host dialled.
func clientTLS(conn net.Conn, t *tls.Config, addr string) net.Conn {
	if t == nil {
		return conn
	}

	// A clone: options are shared by members with different names.
	c := t.Clone()
	if c.ServerName == "" {
		c.ServerName, _, _ = net.SplitHostPort(addr)
	}
	return tls.Client(conn, c)
}
