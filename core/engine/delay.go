package engine

import (
	"slices"

	"downbeat.dev/core/limits"
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

// bounds returns d_ctrl and d_data as backend b measures them. Pings come ten a second; the kernel measures with each message, and
// d_ctrl is no less than its variance says.
func (b *Backend) bounds() (ctrl, data sched.Duration) {
	b.mu.Lock()
	median, high := b.trips.percentiles(len(b.trips.ns), limits.DelayPermille)
	_, fetch := b.fetch.percentiles(len(b.fetch.ns), limits.DelayPermille)
	tail := limits.OneWayVaried(b.tripMean, b.tripVariance, high)
	b.mu.Unlock()
	return sched.Duration(max(limits.OneWay(median, high), tail)), sched.Duration(fetch)
}

// delays returns d_ctrl and d_data as backends measure them and services can bear them.
func (g *registry) delays() (ctrl, data sched.Duration) {
	var bound limits.Bound[sched.Duration]
	for _, b := range g.backends {
		bound = bound.Slowest(b.bounds())
	}

	// Where nothing is served yet no SLO bounds them, and then the longest there is does.
	bound = bound.Within(sched.SLOLimit, 1)
	for _, m := range g.models {
		if m.served() {
			bound = bound.Within(sched.Duration(m.slo), int(m.batchMax()))
		}
	}
	return bound.Ctrl, bound.Data
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
	most  int64      // how late batches are expected to end: limits.Overrun of both
}

func (o *overrun) add(now sched.Time, ns int64) {
	o.delays.add(ns)

	// A percentile sorts its samples, so it is taken only now and then.
	if o.n%limits.OverrunTurn == 0 && now.Sub(o.taken) >= sched.Duration(limits.OverrunEvery) {
		o.taken = now
		_, p99 := o.percentiles(limits.OverrunLatest, limits.OverrunPermille)
		o.expect(p99, o.floor)
	}
}

// addBatch notes how late a batch of a GPU ended, whose plan was to take exec until ends. freed is when the batch before
// left the GPU to it: it cannot have ended sooner than exec after that.
func (o *overrun) addBatch(now, ended, ends, freed sched.Time, exec sched.Duration) {
	o.add(now, limits.Lateness(int64(ended.Sub(ends)), int64(freed.Add(exec).Sub(ends)), o.most))
}

// expect sets the percentile and the floor.
func (o *overrun) expect(p99, floor int64) {
	o.p99, o.floor = p99, floor
	o.most = limits.Overrun(p99, floor)
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
	return sched.Time(limits.OverrunMargin(o.most, int64(budget)))
}
