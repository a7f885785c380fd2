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

// percentiles returns the median and the given permille of the latest samples; 0 without samples.
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

// least returns the least of the latest samples; 0 without samples.
func (d *delays) least() int64 {
	if d.n == 0 {
		return 0
	}
	return slices.Min(d.ns[:min(d.n, len(d.ns))])
}

// bounds returns d_ctrl and d_data as measured by backend b. Pings are sent ten times a second; the kernel measures
// with each message, and its variance sets a lower bound of d_ctrl.
func (b *Backend) bounds() (ctrl, data sched.Duration) {
	// Every report of a batch takes the lock, so the samples are sorted without it.
	b.mu.Lock()
	trips, fetches, mean, variance := b.trips, b.fetch, b.tripMean, b.tripVariance
	b.mu.Unlock()

	median, high := trips.percentiles(len(trips.ns), limits.DelayPermille)
	_, fetch := fetches.percentiles(len(fetches.ns), limits.DelayPermille)
	tail := limits.OneWayVaried(mean, variance, high)
	return sched.Duration(max(limits.OneWay(median, high), tail)), sched.Duration(fetch)
}

// delays returns d_ctrl and d_data as measured by backends, limited by what services can bear.
func (g *registry) delays() (ctrl, data sched.Duration) {
	var bound limits.Bound[sched.Duration]
	for _, b := range g.backends {
		bound = bound.Slowest(b.bounds())
	}

	// Before any model is served, the longest possible SLO sets the bound.
	bound = bound.Within(sched.SLOLimit, 1)
	for _, m := range g.models {
		if m.served() {
			bound = bound.Within(sched.Duration(m.slo), int(m.batchMax()))
		}
	}
	return bound.Ctrl, bound.Data
}

// leastTrip returns the least time that an order takes to a backend: half of the shortest round trip. It is 0 while some
// backend has not been measured.
func (g *registry) leastTrip() sched.Duration {
	least := sched.Duration(0)
	for i, b := range g.backends {
		b.mu.Lock()
		trip := sched.Duration(b.trips.least() / 2)
		b.mu.Unlock()
		if i == 0 || trip < least {
			least = trip
		}
	}
	return least
}

// applyLeastTrip tells the partitions the least trip, which no queued request depends on.
func (g *registry) applyLeastTrip() {
	least := g.leastTrip()
	for _, p := range g.e.parts {
		p.mu.Lock()
		p.leastTrip = least
		p.mu.Unlock()
	}
}

// overrun is how late batches end compared with their plan, as seen by the scheduler: slow executions, late starts,
// and the way back. Deadlines are brought forward by its 99th percentile, because a plan without slack misses
// whenever the host stalls. Each sub-cluster has its own, so a slow backend takes no time from models that it does
// not serve. The partition's lock guards it.
type overrun struct {
	delays
	p99    int64
	taken  sched.Time // when p99 was computed
	floor  int64      // ns that a wake-up may be late; requests dropped for one are never measured
	most   int64      // expected lateness of batches: limits.Overrun of both
	judged *uint64    // counts the changes of most in its partition; nil: nobody counts
}

func (o *overrun) add(now sched.Time, ns int64) {
	o.delays.add(ns)

	// Computing a percentile sorts the samples, so it happens only every OverrunTurn batches.
	if o.n%limits.OverrunTurn == 0 && now.Sub(o.taken) >= sched.Duration(limits.OverrunEvery) {
		o.taken = now
		_, p99 := o.percentiles(limits.OverrunLatest, limits.OverrunPermille)
		o.setPercentile(p99, o.floor)
	}
}

// addBatch records how late a GPU's batch ended; its plan was to take exec until ends. freed is when the previous
// batch left the GPU: the batch could not end before freed + exec.
func (o *overrun) addBatch(now, ended, ends, freed sched.Time, exec sched.Duration) {
	o.add(now, limits.Lateness(int64(ended.Sub(ends)), int64(freed.Add(exec).Sub(ends)), o.most))
}

// setPercentile sets the percentile and the floor.
func (o *overrun) setPercentile(p99, floor int64) {
	o.p99, o.floor = p99, floor
	o.most = limits.Overrun(p99, floor)
	if o.judged != nil {
		*o.judged++
	}
}

// overrunOf returns the overrun of a model's sub-cluster. Of several it returns the largest, since it is not known
// yet where a request will run.
func (p *partition) overrunOf(model uint32) *overrun {
	// Most models have one home.
	at := p.homesOf(model)
	if at < severalHomes {
		return p.overrunKnown(at)
	}

	// Many requests ask, and the answer changes a few times in a second.
	x := &p.latestOf[at-severalHomes]
	if x.as != p.judged {
		x.o, x.as = p.latestIn(p.several[at-severalHomes]), p.judged
	}
	return x.o
}

// latestOverrun is the largest overrun of several sub-clusters, as of a value of partition.judged.
type latestOverrun struct {
	o  *overrun
	as uint64
}

// latestIn returns the largest overrun of some sub-clusters.
func (p *partition) latestIn(subs []uint32) *overrun {
	latest := p.overruns[0]
	for k, sub := range subs {
		if o := p.overrunKnown(sub); k == 0 || o.most > latest.most {
			latest = o
		}
	}
	return latest
}

// overrunKnown returns the overrun of a sub-cluster, or that of the first one if it has none.
func (p *partition) overrunKnown(sub uint32) *overrun {
	if int(sub) < len(p.overruns) && p.overruns[sub] != nil {
		return p.overruns[sub]
	}
	return p.overruns[0]
}

// overrunIn returns the overrun of a sub-cluster, creating it if needed.
func (p *partition) overrunIn(sub uint32) *overrun {
	for int(sub) >= len(p.overruns) {
		p.overruns = append(p.overruns, nil)
	}
	if p.overruns[sub] == nil {
		p.overruns[sub] = &overrun{judged: &p.judged}
		p.overruns[sub].setPercentile(0, p.overruns[0].floor)
	}
	return p.overruns[sub]
}

// margin returns how many ns before its deadline a request with this budget should end.
func (o *overrun) margin(budget sched.Duration) sched.Time {
	return sched.Time(limits.OverrunMargin(o.most, int64(budget)))
}
