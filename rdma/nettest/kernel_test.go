package nettest

import (
	"errors"
	"net"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"downbeat.dev/rdma/kernel"
)

// TestNetKernelExplainsATail shows that the kernel's counts name the cause: a slow network, or one that loses
// packets.
func TestNetKernelExplainsATail(t *testing.T) {
	for name, c := range map[string]struct {
		harm harm
		says string
		seen func(r kernel.Report) bool
	}{
		"slow": {harm{delay: 20 * time.Millisecond}, "the network is slow",
			func(r kernel.Report) bool { return r.RTT.Count >= 20 && r.RTT.P50 >= 40*time.Millisecond }},
		"loses": {harm{delay: 20 * time.Millisecond, loss: 10}, "the network loses packets",
			func(r kernel.Report) bool { return r.Retransmits > 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			p := newRoughPlace(t)
			if p.kind != "namespaces" {
				t.Skip("the programs are the same; rdma/kernel's tests run in the guest")
			}
			h := p.newHost(t, p.stall)
			hostport, _, _ := strings.Cut(h.Addr, "#")
			_, text, _ := net.SplitHostPort(hostport)
			port, _ := strconv.Atoi(text)
			w, err := kernel.Open([]uint16{uint16(port)}, nil)
			if errors.Is(err, kernel.ErrNotPermitted) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			p.hurt(t, c.harm)
			m := p.newReader(t, p.stall)
			peer := m.connect(t, h.Addr)
			var r kernel.Report
			for end := time.Now().Add(p.patience); !c.seen(r) && time.Now().Before(end); {
				if err := m.read(t, peer, h.Remote); err != nil {
					t.Fatal(err)
				}
				if r, err = w.Read(); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("%+v: %s", r, r.Verdict())
			if !c.seen(r) || !strings.Contains(r.Verdict(), c.says) {
				t.Errorf("want %q", c.says)
			}
			p.heal(t)
			peer.Close()
			h.end(t)
		})
	}
}

// TestNetKernelSeesACut shows that a cut cable is detected before the peer is given up, even if nothing is read over
// it, and so is its repair.
func TestNetKernelSeesACut(t *testing.T) {
	p := newRoughPlace(t)
	if p.kind != "namespaces" {
		t.Skip("over verbs the kernel sees no data")
	}
	h := p.newHost(t, p.stall)
	m := p.newReader(t, p.stall)
	peer := m.connect(t, h.Addr)
	if err := m.read(t, peer, h.Remote); err != nil {
		t.Fatal(err)
	}
	until := func(what string, there func() bool) {
		t.Helper()
		for end := time.Now().Add(p.patience); !there(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) || peer.Err() != nil {
				t.Fatalf("%s: %+v, %v", what, m.Node.Stats().Links(), peer.Err())
			}
		}
	}

	cut := time.Now()
	p.cut(t)
	until("no stall", func() bool { return peer.Stalled() > 0 })
	t.Logf("seen %v after the cut", time.Since(cut).Round(time.Millisecond))
	until("nothing was sent again", func() bool { l := m.Node.Stats().Links(); return l.Stalled == 1 && l.Retransmitted > 0 })
	p.heal(t)
	until("it stalls although the cable is mended", func() bool { return peer.Stalled() == 0 })
	if err := m.read(t, peer, h.Remote); err != nil {
		t.Error(err)
	}
	peer.Close()
	h.end(t)
}

// BenchmarkNetLossyReads reads small buffers one after the other while 5 % of the packets are lost in each direction.
// The kernel's retransmission time decides how many reads take longer than most deadlines.
func BenchmarkNetLossyReads(b *testing.B) {
	p := newRoughPlace(b)
	h := p.newHost(b, p.stall)
	m := p.newReader(b, p.stall)
	peer := m.connect(b, h.Addr)
	p.hurt(b, harm{loss: 5})

	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		if err := m.read(b, peer, h.Remote); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	late := len(took) - sort.Search(len(took), func(i int) bool { return took[i] > 100*time.Millisecond })
	b.ReportMetric(float64(took[len(took)*95/100].Milliseconds()), "p95-ms")
	b.ReportMetric(100*float64(late)/float64(len(took)), "%-over-100ms")
	p.heal(b)
	peer.Close()
	h.end(b)
}

// TestNetProcessThatWatches shows that downbeat net prints its measurements, or why it cannot measure.
func TestNetProcessThatWatches(t *testing.T) {
	p := newPlace(t)
	s := newSystem(t, p)
	c := (*place)(nil).start(t, nil, s.binary, "net", "-for", "200ms", "-ports", "7070")
	switch code := c.code(t, p.patience); {
	case code == 0 && strings.Contains(c.text(), "round trips of TCP"):
	case code != 0 && strings.Contains(c.text(), "not permitted"):
		t.Skip(c.text())
	default:
		t.Errorf("exit code %d: %s", code, c.text())
	}
}
