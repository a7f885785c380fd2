package control

import (
	"io"
	"net"
	"testing"
	"time"

	"downbeat.dev/core/wire"
)

// TestSilenceCountsOwnTicks shows that a process that did not run, and so did not tick, blames no peer.
func TestSilenceCountsOwnTicks(t *testing.T) {
	s := silence{patience: quietTicks}
	for i := range quietTicks - 1 {
		if s.tickLasts() {
			t.Fatalf("silent after %d ticks", i+1)
		}
	}
	s.heard.Add(1)
	for i := range quietTicks {
		if s.tickLasts() {
			t.Fatalf("silent %d ticks after a frame", i)
		}
	}
	if !s.tickLasts() {
		t.Errorf("not silent after %d ticks without a frame", quietTicks)
	}
	if QuietMax > 500*time.Millisecond {
		t.Errorf("silence is seen after %v, want 500ms", QuietMax)
	}
}

// TestSilentPeersAreCut shows that a frontend that answers no ping is cut, and so is a silent scheduler. TCP alone
// would take a quarter of an hour.
func TestSilentPeersAreCut(t *testing.T) {
	t.Run("frontend", func(t *testing.T) {
		h := open(t, ServerOptions{quiet: quietTicks})
		hello, _ := wire.AppendFrontendHello(nil, &wire.FrontendHello{Version: wire.Version})
		conn, err := net.Dial("tcp", h.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.Write(hello)
		conn.SetReadDeadline(time.Now().Add(bound))
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Errorf("not cut: %v", err)
		}
	})

	t.Run("scheduler", func(t *testing.T) {
		ln, err := Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		go func() {
			for {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				conn.Write(wire.AppendLead(wire.AppendWelcome(nil, wire.Welcome{Version: wire.Version, Session: 1}), wire.Lead{Leads: true}))
			}
		}()
		c := newCaller()
		link, err := DialFrontend(ctx(t), DialOptions{Addr: ln.Addr().String()}, wire.FrontendHello{}, c)
		if err != nil {
			t.Fatal(err)
		}
		defer link.Close()
		end := time.After(bound)
		for cut := false; !cut; {
			select {
			case <-c.changed:
			case <-end:
				t.Fatal("not cut")
			}
			c.mu.Lock()
			cut = c.downs > 0
			c.mu.Unlock()
		}
	})
}

// TestBackoffFollowsTheOutage shows that a scheduler that returns soon is found at once, and that attempts stay rare
// during a long outage.
func TestBackoffFollowsTheOutage(t *testing.T) {
	for outage, want := range map[time.Duration]time.Duration{
		0:                      backoffMin,
		80 * time.Millisecond:  10 * time.Millisecond,
		800 * time.Millisecond: 100 * time.Millisecond,
		2 * time.Second:        250 * time.Millisecond,
		time.Hour:              backoffMax,
	} {
		if got := backoffAfter(outage); got != want {
			t.Errorf("after %v: %v, want %v", outage, got, want)
		}
	}
}
