package control

import (
	"crypto/tls"
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

// silence measures how long nothing was heard from a peer, in ticks of pingEvery. It counts ticks and reads no clock:
// a process that was stopped, or had no processor, missed ticks as well as messages, so it does not blame its peers.
type silence struct {
	patience int32         // ticks
	heard    atomic.Uint32 // frames, counted by the reader

	last  uint32       // heard at the previous tick
	ticks atomic.Int32 // consecutive ticks without a frame; written at ticks
}

// silentFor returns how long nothing was heard.
func (s *silence) silentFor() time.Duration { return time.Duration(s.ticks.Load()) * pingEvery }

// tickLasts is called at every tick. It returns true after patience ticks of silence.
func (s *silence) tickLasts() bool {
	heard := s.heard.Load()

	// Any frame is a sign of life, not only the answer to a ping.
	if heard != s.last {
		s.last = heard
		s.ticks.Store(0)
		return false
	}
	return s.ticks.Add(1) >= s.patience
}

// watchSilence closes the connection when the peer is silent too long. It ends with the writer.
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

// clientTLS wraps conn in TLS if t is set; the server's name defaults to the dialled host.
func clientTLS(conn net.Conn, t *tls.Config, addr string) net.Conn {
	if t == nil {
		return conn
	}

	// A clone, because members with different names share the options.
	c := t.Clone()
	if c.ServerName == "" {
		c.ServerName, _, _ = net.SplitHostPort(addr)
	}
	return tls.Client(conn, c)
}
