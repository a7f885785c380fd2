package engine

import (
	"testing"
	"time"

	"downbeat.dev/core/sched"
)

// TestDelaysAreHighPercentiles shows that of a thousand round trips at most two are longer than d_ctrl allows.
func TestDelaysAreHighPercentiles(t *testing.T) {
	var d delays
	for i := range 5000 {
		d.add(int64(i%1000) * 1000)
	}
	if p50, p999 := d.percentiles(len(d.ns), 999); p50 < 480e3 || p50 > 520e3 || p999 < 997e3 || p999 > 999e3 {
		t.Errorf("p50 %d, p99.9 %d of 0 to 999 µs", p50, p999)
	}
	d = delays{}
	d.add(7)
	if p50, p999 := d.percentiles(len(d.ns), 999); p50 != 7 || p999 != 7 {
		t.Errorf("p50 %d, p99.9 %d of one sample of 7 ns", p50, p999)
	}
}

// TestDelaysLeaveTheTightestSLOItsBudget shows that models keep room to batch, whatever a peer measures or invents.
func TestDelaysLeaveTheTightestSLOItsBudget(t *testing.T) {
	for _, c := range []struct{ trip, fetch, slo, ctrl, data int64 }{
		{400e3, 20e3, 100e6, 200e3, 20e3},
		{1e9, 1e9, 1000e6, 5e6, 1e6},
		{1e9, 1e9, 12e6, 3e6, 3e6 / 8},
	} {
		s := newStage(t, Options{})
		h := hello("b", 1, slope, "m")
		for i := range h.Models {
			h.Models[i].Info.SLO = c.slo
			h.Models[i].Profile = h.Models[i].Profile[:8]
		}
		b := s.mustBackend(h)
		for range 2000 {
			b.RoundTrip(c.trip)
			b.fetch.add(c.fetch)
		}
		s.clock.now += 5000 * ms
		s.e.Poll(s.clock.now)
		if got := s.e.Stats(); got.Ctrl != sched.Duration(c.ctrl) || got.Data != sched.Duration(c.data) {
			t.Errorf("%+v: d_ctrl %d, d_data %d", c, got.Ctrl, got.Data)
		}
	}
}

// TestControlDelayIsNoLessThanTheKernelsVariance shows that the kernel's variance counts if it is larger than that of
// the pings, but not if acknowledgements were delayed.
func TestControlDelayIsNoLessThanTheKernelsVariance(t *testing.T) {
	for _, c := range []struct {
		trip           int64
		mean, variance time.Duration
		ctrl           int64
	}{
		{400e3, 0, 0, 200e3},
		{400e3, 300 * time.Microsecond, 10 * time.Microsecond, 200e3},
		{400e3, 300 * time.Microsecond, 100 * time.Microsecond, 550e3},
		{400e3, 20 * time.Millisecond, 5 * time.Millisecond, 200e3},
		{400e3, 300 * time.Microsecond, 100 * time.Millisecond, 5e6},
	} {
		s := newStage(t, Options{})
		b := s.mustBackend(hello("b", 1, slope, "m"))
		for range 100 {
			b.RoundTrip(c.trip)
		}
		b.NetworkTrip(c.mean, c.variance)
		s.clock.now += 5000 * ms
		s.e.Poll(s.clock.now)
		if got := s.e.Stats(); got.Ctrl != sched.Duration(c.ctrl) {
			t.Errorf("pings of %v, the kernel's %v ± %v: d_ctrl %v, want %v", time.Duration(c.trip), c.mean, c.variance, time.Duration(got.Ctrl), time.Duration(c.ctrl))
		}
	}
}
