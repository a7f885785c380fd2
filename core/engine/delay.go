package engine

import (
	"slices"

	"downbeat.dev/core/sched"
)

// delays keeps the latest samples of one delay.
type delays struct {
	ns [256]int64
	n  int
}

func (d *delays) add(ns int64) {
	d.ns[d.n%len(d.ns)] = max(0, ns)
	d.n++
}

// percentiles returns the median and the 99th percentile, 0 without samples.
func (d *delays) percentiles() (p50, p99 int64) {
	n := min(d.n, len(d.ns))
	if n == 0 {
		return 0, 0
	}
	s := d.ns
	slices.Sort(s[:n])
	return s[n/2], s[min(n-1, n*99/100)]
}

// Bounds on what a measurement may make of the network delays, so that a backend in trouble does
// not stop everyone's batching.
const (
	ctrlMost = sched.Duration(5e6)
	dataMost = sched.Duration(1e6)
)

// bounds returns d_ctrl and d_data as backend b measures them. A round trip's tail is taken to
// lie in one direction: d_ctrl = p99 − p50/2.
func (b *Backend) bounds() (ctrl, data sched.Duration) {
	b.mu.Lock()
	t50, t99 := b.trips.percentiles()
	_, f99 := b.fetch.percentiles()
	b.mu.Unlock()
	return min(sched.Duration(t99-t50/2), ctrlMost), min(sched.Duration(f99), dataMost)
}

// overrun is by how much batches end later than planned, as the scheduler hears of it: slow
// executions, late starts, and the way back. Deadlines are brought forward by its 99th percentile,
// since a plan without slack misses whenever the host stumbles. Its partition's lock guards it.
type overrun struct {
	delays
	p99   int64
	taken sched.Time // when p99 was taken
	floor int64      // ns that a wake-up may be late; what is dropped for it is never measured
	most  int64      // of a margin: the larger of both, at most overrunMost
}

// What an overrun may take of a request's budget, and how often its percentile is taken anew.
const (
	overrunShare = 4          // at most a quarter
	overrunTurn  = 32         // batches,
	overrunEvery = 10_000_000 // and not more often than this, ns: it sorts
	overrunMost  = 1e9
	overrunFloor = 500_000 // ns
)

func (o *overrun) add(now sched.Time, ns int64) {
	o.delays.add(ns)
	if o.n%overrunTurn == 0 && now.Sub(o.taken) >= overrunEvery {
		o.taken = now
		_, p99 := o.percentiles()
		o.expect(p99, o.floor)
	}
}

// expect sets the percentile and the floor.
func (o *overrun) expect(p99, floor int64) {
	o.p99, o.floor = p99, floor
	o.most = min(max(p99, floor), overrunMost)
}

// margin is how many ns sooner than its deadline a request with that budget should be done.
func (o *overrun) margin(budget sched.Duration) sched.Time {
	return sched.Time(max(0, min(o.most, int64(budget)/overrunShare)))
}
