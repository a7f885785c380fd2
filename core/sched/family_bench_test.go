package sched

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkFamily measures one request's share of everything for families of three variants, on GPUs of one kind and of
// three, at 70 % of what the GPUs hold.
func BenchmarkFamily(b *testing.B) {
	for _, size := range []struct{ families, kinds int }{{1000, 1}, {10, 3}, {100, 3}, {1000, 3}} {
		b.Run(fmt.Sprintf("families=%d/kinds=%d", size.families, size.kinds), func(b *testing.B) {
			l := newFamilyLoop(b, size.families, 9999, size.kinds)
			l.run(size.families * 400) // until rates are known and memory is warm
			b.ReportAllocs()
			b.ResetTimer()
			l.run(b.N)
			_, rs := l.s.Stats()
			b.ReportMetric(float64(l.id)/float64(max(1, rs.Grants-rs.Unused)), "requests/batch")
			b.ReportMetric(float64(rs.Unused)/float64(max(1, rs.Grants)), "unused/grant")
		})
	}
}

// newFamilyLoop is newLoop with families: of three variants, the better the slower, on kinds of GPUs that differ in speed.
func newFamilyLoop(t testing.TB, families, gpus, kinds int) *loop {
	l := &loop{s: New(Options{}), models: families}
	s := Service{SLO: 100 * ms}
	for k := range kinds {
		s.Homes = append(s.Homes, uint32(k))
	}
	for v := range 3 {
		x := Variant{Accuracy: 0.9 + 0.03*float64(v)}
		for k := range kinds {
			slow := time.Duration(1<<v) * time.Duration(4+k) / 4
			x.Profiles = append(x.Profiles, line(t, slow*50*time.Microsecond, slow*500*time.Microsecond, 64))
		}
		s.Variants = append(s.Variants, x)
	}

	p := s.Variants[2].Profiles[0]
	l.gap = max(1, Duration(p.Exec(64))/Duration(64*gpus)*10/7)
	s.Rate = 1e9 / float64(l.gap) / float64(families)

	for m := range families {
		if err := l.s.AddService(0, ModelID(m), s); err != nil {
			t.Fatal(err)
		}
	}
	for g := range gpus {
		if err := l.s.AddGPU(0, GPUID(g), uint32(g%kinds)); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// TestNoAllocationPerRequestOfFamilies: after warm-up nothing on the request path of families allocates.
func TestNoAllocationPerRequestOfFamilies(t *testing.T) {
	for _, kinds := range []int{1, 3} {
		l := newFamilyLoop(t, 20, 39, kinds)
		l.run(100_000)
		if n := testing.AllocsPerRun(20, func() { l.run(1000) }); n > 0 {
			t.Errorf("%d kinds: %v allocations in 1000 requests", kinds, n)
		}
	}
}
