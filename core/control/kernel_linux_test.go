package control

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"downbeat.dev/internal/logtest"
	"downbeat.dev/internal/sicklink"
)

// TestKernelSeesADarkBackend shows that data for an unreachable backend is retransmitted, and that the link stalls
// before it is given up.
func TestKernelSeesADarkBackend(t *testing.T) {
	var log logtest.Buffer
	h := open(t, ServerOptions{quiet: quietTicks, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	r := newRunner(nil)
	link, err := DialBackend(ctx(t), DialOptions{Addr: h.addr}, backendHello("m"), r)
	if err != nil {
		t.Fatal(err)
	}
	r.set(link)
	defer link.Close()

	backends := func() LinkStats {
		for _, s := range h.s.LinkStats() {
			if s.Peers == "backend" {
				return s
			}
		}
		t.Fatal("no backends in the statistics")
		return LinkStats{}
	}
	waitFor(t, "a look at the link", func() bool { s := backends(); return s.Links == 1 && s.RoundTrip > 0 })

	// The link is given up soon afterwards. On a host that stalls meanwhile, the stall of the link may be missed.
	stalls := func() bool { return strings.Contains(log.String(), "link stalls") }
	for end := time.Now().Add(time.Minute); !stalls(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no link stalled: %+v\n%s", backends(), log.String())
		}
		if w := link.(*backendLink).leaderWriter(); w != nil {
			_ = sicklink.DropArrivals(w.conn, true) // a closed connection is followed by another one
		}
	}
	if s := backends(); s.Retransmitted == 0 {
		t.Errorf("%+v: nothing was sent again", s)
	}
}

// TestLinksAddUp shows the longest round trip, every stall, and the segments retransmitted since the last check, even
// after the kernel's counter has wrapped.
func TestLinksAddUp(t *testing.T) {
	var l linkLook
	l.addLink(backendSession, tcpState{roundTrip: 2 * time.Millisecond, retransmitted: 7}, tcpState{retransmitted: 4})
	l.addLink(backendSession, tcpState{roundTrip: time.Millisecond, retransmitted: 1, stalled: true}, tcpState{retransmitted: 1<<32 - 1})
	l.addLink(frontendSession, tcpState{retransmitted: 1}, tcpState{})
	if want := (LinkStats{Links: 2, Stalled: 1, RoundTrip: 2 * time.Millisecond, Retransmitted: 5}); l[backendSession] != want || l[frontendSession].Retransmitted != 1 {
		t.Errorf("%+v, want %+v of backends", l, want)
	}
}
