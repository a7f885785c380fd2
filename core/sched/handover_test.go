package sched

import (
	"math"
	"testing"
	"time"
)

// TestRateIsHandedOver: a Partition that got another's rate plans its first batch as that one does; one that did not
// plans for a batch of one.
func TestRateIsHandedOver(t *testing.T) {
	prof := line(t, time.Millisecond, 5*time.Millisecond, 64)
	open := func() *Partition {
		p := NewPartition(Options{})
		p.SetGPUs(0, 1, 4)
		if err := p.AddModel(0, 1, Model{Profile: prof, SLO: 100 * ms, SubCluster: 1}); err != nil {
			t.Fatal(err)
		}
		return p
	}
	target := func(p *Partition) int { m, _ := p.find(1); return m.target }

	leader, standby := open(), open()
	now := Time(0)
	for i := range 3000 { // 1,000 a second
		now = Time(i) * Time(ms)
		leader.Enqueue(now, Request{ID: RequestID(i + 1), Model: 1, Deadline: now.Add(100 * ms)})
		if i%10 == 0 {
			leader.Grant(now, Grant{Model: 1, SubCluster: 1, GPU: 1, FreeAt: now})
		}
	}
	learned := leader.Learned(1)
	rate := learned.Rate
	if rate < 900 || rate > 1100 || target(leader) < 4 {
		t.Fatalf("rate %v, target %d", rate, target(leader))
	}
	if before := target(standby); before != 1 {
		t.Errorf("before: target %d, want 1", before)
	}
	standby.Learn(now, 1, learned)
	if after := target(standby); after != target(leader) || standby.Learned(1).Rate != rate {
		t.Errorf("after: target %d, rate %v; want %d and %v", after, standby.Learned(1).Rate, target(leader), rate)
	}

	for _, bad := range []Learned{{Rate: -1}, {Rate: math.NaN()}, {Rate: math.Inf(1)}, {Rate: 1, Margin: -1}, {Rate: 1, Margin: 1 << 62}} {
		standby.Learn(now, 1, bad)
	}
	standby.Learn(now, 7, Learned{Rate: 5})
	if standby.Learned(1).Rate != rate || standby.Learned(7).Rate != 0 {
		t.Errorf("nonsense was learned: %v, %v", standby.Learned(1).Rate, standby.Learned(7).Rate)
	}
	leader.Learn(now, 1, Learned{Rate: 5})
	if leader.Learned(1).Rate != rate {
		t.Error("a model with requests of its own was told its rate")
	}
}
