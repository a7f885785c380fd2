package engine

import (
	"slices"
	"sync/atomic"

	"downbeat.dev/core/sched"
)

// outlook is when a ranker's next GPUs are free, for partitions whose services have several homes. Partitions read it
// under their own lock and without the ranker's (I1): it is a sequence lock, whose version is odd during a write.
type outlook struct {
	version atomic.Uint64
	n       atomic.Int64
	spare   atomic.Int64
	free    [sched.OutlookMax]atomic.Int64
	latest  sched.Outlook // the ranker's lock guards it
}

// publish replaces the outlook and reports whether it has changed. The ranker's lock is held.
func (o *outlook) publish(x sched.Outlook) bool {
	if x == o.latest {
		return false
	}

	// A concurrent reader sees an odd version, or a different one afterwards.
	o.latest = x
	o.version.Add(1)
	o.n.Store(int64(x.N))
	o.spare.Store(int64(x.Spare))
	for i := range x.N {
		o.free[i].Store(int64(x.Free[i]))
	}
	o.version.Add(1)
	return true
}

// readNewer fills in x if the outlook is newer than version since, and returns its version. Otherwise, or during a
// write, it returns since: the writing turn will visit this partition anyway.
func (o *outlook) readNewer(since uint64, x *sched.Outlook) uint64 {
	v := o.version.Load()
	if v == since || v%2 != 0 {
		return since
	}

	x.N, x.Spare = int(o.n.Load()), int(o.spare.Load())
	for i := range x.N {
		x.Free[i] = sched.Time(o.free[i].Load())
	}

	// The outlook changed during the read: discard what was read.
	if o.version.Load() != v {
		return since
	}

	return v
}

// spreadSub is a sub-cluster in which one of a partition's services with several homes has a home.
type spreadSub struct {
	number  uint32
	version uint64 // of the outlook read last
}

// watchHomes records the homes of a service with several. mu is held.
func (p *partition) watchHomes(e *Engine, homes []uint32) {
	for _, sub := range homes {
		e.ranker(sub).spread.Store(true)
		if !slices.ContainsFunc(p.spread, func(x spreadSub) bool { return x.number == sub }) {
			p.spread = append(p.spread, spreadSub{number: sub})
		}
	}
}

// severalHomes is the first number in partition.homes that is not a sub-cluster: it stands for place 0 of
// partition.several.
const severalHomes = sched.SubClusterLimit

// homesOf returns a model's number in partition.homes; for an unknown model, that of the first sub-cluster. mu is held.
func (p *partition) homesOf(model uint32) uint32 {
	if int(model) < len(p.homes) {
		return p.homes[model]
	}
	return 0
}

// severalOf returns the sub-clusters of a model with several homes; nil for one with a single home. mu is held.
func (p *partition) severalOf(model uint32) []uint32 {
	if at := p.homesOf(model); at >= severalHomes {
		return p.several[at-severalHomes]
	}
	return nil
}

// listHomes returns the place of a list of sub-clusters in several, and adds it if necessary. Models with the same homes
// share one list, so the lists stay in a core's cache. mu is held.
func (p *partition) listHomes(homes []uint32) uint32 {
	if k := slices.IndexFunc(p.several, func(x []uint32) bool { return slices.Equal(x, homes) }); k >= 0 {
		return uint32(k)
	}

	// Reuse the place of a list that no model has any more.
	p.judged++
	for k := range p.several {
		if !slices.Contains(p.homes, severalHomes+uint32(k)) {
			p.several[k] = homes
			return uint32(k)
		}
	}
	p.several, p.latestOf = append(p.several, homes), append(p.latestOf, latestOverrun{})
	return uint32(len(p.several) - 1)
}

// chooseHomes lets services with several homes choose among them by the newest outlooks. mu is held.
func (p *partition) chooseHomes(e *Engine, t *turn) {
	for i := range p.spread {
		s := &p.spread[i]
		x := sched.Outlook{SubCluster: s.number}
		if v := e.ranker(s.number).outlook.readNewer(s.version, &x); v != s.version {
			s.version = v
			p.s.SetOutlook(&x)
		}
	}

	p.s.Place(t.now)
	if w := p.s.Waits(); w != p.waits.Load() {
		p.waits.Store(w)
	}
}

// visitWaiting visits the partitions that depend on a changed outlook.
func (e *Engine) visitWaiting(t *turn) {
	t.looks = false
	for _, p := range e.parts {
		if p.waits.Load() {
			p.enter(t)
			p.collectOutputs(e, t)
			p.mu.Unlock()
		}
	}
}

// tellOutlooks publishes the outlooks of sub-clusters in which services with several homes are new.
func (g *registry) tellOutlooks(homes []uint32) {
	for _, sub := range homes {
		r := g.e.ranker(sub)
		t := g.e.beginTurn(&g.spare)
		r.enter(t)
		r.advance(g.e, t)
		r.mu.Unlock()
		g.e.finishTurn(t)
	}
}
