package engine

import (
	"slices"

	"downbeat.dev/core/sched"
)

// delays keeps the latest samples of one delay.
type delays struct {
	ns [1024]int64
	n  int
}

func (d *delays) add(ns int64) {
	d.ns[d.n%len(d.ns)] = max(0, ns)
	d.n++
}

// percentiles returns the median and the percentile of so many permille of the latest samples, 0 without any.
func (d *delays) percentiles(latest, permille int) (p50, high int64) {
	n := min(d.n, latest)
	if n == 0 {
		return 0, 0
	}
	var s [len(d.ns)]int64
	for i := range n {
		s[i] = d.ns[(d.n-1-i)%len(d.ns)]
	}
	slices.Sort(s[:n])
	return s[n/2], s[n*permille/1000]
}

// bounds returns d_ctrl and d_data as backend b measures them. A round trip's tail is taken to
// lie in one direction: d_ctrl = p99.9 − p50/2.
func (b *Backend) bounds() (ctrl, data sched.Duration) {
	b.mu.Lock()
	t50, t999 := b.trips.percentiles(len(b.trips.ns), 999)
	_, f999 := b.fetch.percentiles(len(b.fetch.ns), 999)
	b.mu.Unlock()
	return sched.Duration(t999 - t50/2), sched.Duration(f999)
}

// Bounds on what a measurement may make of the network delays, so that a backend in trouble does
// not stop everyone's batching.
const (
	ctrlMost   = sched.Duration(5e6)
	dataMost   = sched.Duration(1e6)
	delayShare = 4 // and of the tightest SLO, each takes at most a quarter, d_data for a whole batch
)

// delays returns d_ctrl and d_data as measured; the slowest peer counts for all.
func (g *registry) delays() (ctrl, data sched.Duration) {
	for _, b := range g.backends {
		bc, bd := b.bounds()
		ctrl, data = max(ctrl, bc), max(data, bd)
	}

	ctrl, data = min(ctrl, ctrlMost), min(data, dataMost)
	for _, m := range g.models {
		if m.served() {
			most := sched.Duration(m.slo / delayShare)
			ctrl, data = min(ctrl, most), min(data, most/sched.Duration(max(1, m.batchMax())))
		}
	}
	return ctrl, data
}

// overrun is by how much batches end later than planned, as the scheduler hears of it: slow
// executions, late starts, and the way back. Deadlines are brought forward by its 99th percentile,
// since a plan without slack misses whenever the host stumbles. Each sub-cluster has its own, so that a backend
// that is slow takes nothing from models that it does not serve. Its partition's lock guards it.
type overrun struct {
	delays
	p99   int64
	taken sched.Time // when p99 was taken
	floor int64      // ns that a wake-up may be late; what is dropped for it is never measured
	most  int64      // of a margin: the larger of both, at most overrunMost
}

// What an overrun may take of a request's budget, and how often its percentile is taken anew.
const (
	overrunShare  = 4          // at most a quarter
	overrunLatest = 256        // batches count
	overrunTurn   = 32         // batches,
	overrunEvery  = 10_000_000 // and not more often than this, ns: it sorts
	overrunMost   = 1e9
	overrunFloor  = 500_000 // ns
)

func (o *overrun) add(now sched.Time, ns int64) {
	o.delays.add(ns)
	if o.n%overrunTurn == 0 && now.Sub(o.taken) >= overrunEvery {
		o.taken = now
		_, p99 := o.percentiles(overrunLatest, 990)
		o.expect(p99, o.floor)
	}
}

// expect sets the percentile and the floor.
func (o *overrun) expect(p99, floor int64) {
	o.p99, o.floor = p99, floor
	o.most = min(max(p99, floor), overrunMost)
}

// overrunOf returns the overrun of a model's sub-cluster, and of several the one that is expected latest: nobody knows
// yet where a request will be served.
func (p *partition) overrunOf(model uint32) *overrun {
	if int(model) >= len(p.homes) {
		return p.overruns[0]
	}
	at := p.homes[model]
	if at < severalHomes {
		return p.overrunKnown(at)
	}

	latest := p.overruns[0]
	for k, sub := range p.several[model] {
		if o := p.overrunKnown(sub); k == 0 || o.most > latest.most {
			latest = o
		}
	}
	return latest
}

// severalHomes stands in partition.homes for a model whose sub-clusters are in partition.several.
const severalHomes = sched.SubClusterLimit

// overrunKnown returns the overrun of a sub-cluster, the first one when it has none.
func (p *partition) overrunKnown(sub uint32) *overrun {
	if int(sub) < len(p.overruns) && p.overruns[sub] != nil {
		return p.overruns[sub]
	}
	return p.overruns[0]
}

// overrunIn returns the overrun of a sub-cluster, a new one when it has none.
func (p *partition) overrunIn(sub uint32) *overrun {
	for int(sub) >= len(p.overruns) {
		p.overruns = append(p.overruns, nil)
	}
	if p.overruns[sub] == nil {
		p.overruns[sub] = &overrun{}
		p.overruns[sub].expect(0, p.overruns[0].floor)
	}
	return p.overruns[sub]
}

// margin is how many ns sooner than its deadline a request with that budget should be done.
func (o *overrun) margin(budget sched.Duration) sched.Time {
	return sched.Time(max(0, min(o.most, int64(budget)/overrunShare)))
}
