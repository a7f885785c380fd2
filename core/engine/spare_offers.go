package engine

import (
	"fmt"
	"slices"

	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// offerSpare makes a backend's spare work known to the rankers of its GPUs.
func (g *registry) offerSpare(b *Backend, o *wire.SpareOffer) {
	if b.dead.Load() {
		return
	}

	// An offer of a zero step withdraws the work.
	at := slices.IndexFunc(b.works, func(w *spareWork) bool { return w.number == o.Work })
	if o.Step == 0 {
		if at >= 0 {
			g.withdrawSpare(b, b.works[at], b.works[at].subs)
			b.works = slices.Delete(b.works, at, at+1)
		}
		return
	}

	if err := g.checkOffer(b, o); err != nil {
		g.e.log.Error("spare work refused", "backend", b.name, "work", o.Work, "err", err)
		return
	}

	w := &spareWork{number: o.Work}
	if at >= 0 {
		w = b.works[at]
	} else {
		b.works = append(b.works, w)
	}

	// A new offer goes to all rankers, so work that one of them has suspended continues.
	before := w.subs
	w.name = o.Name
	w.step, w.weight, w.only, w.subs = sched.Duration(o.Step), o.Weight, o.GPU, nil
	g.moveSpare(b)

	// Work may be of one GPU from now on.
	left := slices.DeleteFunc(before, func(sub uint32) bool { return slices.Contains(w.subs, sub) })
	g.withdrawSpare(b, w, left)
}

// checkOffer refuses spare work that no ranker would take, and assigns the backend a number.
func (g *registry) checkOffer(b *Backend, o *wire.SpareOffer) error {
	switch {
	case o.Work >= workNumbers:
		return fmt.Errorf("number %d: want less than %d", o.Work, workNumbers)
	case o.Step < 0 || sched.Duration(o.Step) > sched.SpareStepMost:
		return fmt.Errorf("step %d ns: want 1 to %d", o.Step, sched.SpareStepMost)
	case !(o.Weight > 0 && o.Weight <= 1e6):
		return fmt.Errorf("weight %v: want above 0 and at most 1e6", o.Weight)
	case int64(o.GPU) > int64(len(b.gpus)):
		return fmt.Errorf("gpu %d: the backend has %d", o.GPU-1, len(b.gpus))
	case b.owner != 0:
		return nil
	}

	// Numbers of departed backends are free again.
	for owner := uint32(1); owner < ownersMax; owner++ {
		if !slices.ContainsFunc(g.backends, func(x *Backend) bool { return x.owner == owner }) {
			b.owner = owner
			return nil
		}
	}

	return fmt.Errorf("%d backends have some already", ownersMax-1)
}

// moveSpare offers a backend's spare work in the sub-clusters where its GPUs are now, and withdraws it where none is
// left.
func (g *registry) moveSpare(b *Backend) {
	if len(b.works) == 0 {
		return
	}

	subs, fresh := b.subClusters(), !g.foretelling
	for _, w := range b.works {
		to := b.subsOf(w, subs)
		left := slices.DeleteFunc(slices.Clone(w.subs), func(sub uint32) bool { return slices.Contains(to, sub) })
		g.withdrawSpare(b, w, left)
		for _, sub := range to {
			if !slices.Contains(w.subs, sub) {
				fresh = g.offerTo(b, w, sub) || fresh
			}
		}
		w.subs = to
	}

	// The ranker ignored forecasts while it had no spare work: its GPUs run steps only after it has received fresh
	// ones.
	if fresh {
		g.setForecasting()
	}

	for _, sub := range subs {
		g.ownGPUs(b, sub)
	}
}

// subClusters returns the sub-clusters of a backend's GPUs, in the GPUs' order.
func (b *Backend) subClusters() (subs []uint32) {
	for _, u := range b.gpus {
		if u != nil && !slices.Contains(subs, u.sub) {
			subs = append(subs, u.sub)
		}
	}

	return subs
}

// subsOf returns the sub-clusters where a work's steps may run, of all those where the backend has GPUs.
func (b *Backend) subsOf(w *spareWork, all []uint32) []uint32 {
	if w.only == 0 {
		return all
	}

	// A GPU has another number in each sub-cluster.
	u := b.gpus[w.only-1]
	if u == nil {
		return nil
	}

	w.gpu = u.id
	return []uint32{u.sub}
}

// offerTo offers spare work to a sub-cluster's ranker. It reports whether it is the first there.
func (g *registry) offerTo(b *Backend, w *spareWork, sub uint32) (first bool) {
	r := g.e.ranker(sub)
	r.mu.Lock()
	defer r.mu.Unlock()
	first = !r.s.HasSpare()

	// A turn at this ranker may have read the clock later.
	now := max(g.e.clock.Now(), r.latest)
	err := r.s.OfferSpare(now, sched.SpareWork{ID: workID(b, w.number), Step: w.step, Weight: w.weight, Owner: b.owner, Most: 1,
		Pinned: w.only != 0, GPU: w.gpu})
	if err != nil {
		g.e.log.Error("spare work refused", "backend", b.name, "work", w.number, "err", err)
	}

	return first
}

func (g *registry) withdrawSpare(b *Backend, w *spareWork, subs []uint32) {
	for _, sub := range subs {
		r := g.e.ranker(sub)
		r.mu.Lock()
		r.s.WithdrawSpare(max(g.e.clock.Now(), r.latest), workID(b, w.number))
		r.mu.Unlock()
	}
}

// ownGPUs lets a backend's GPUs in a sub-cluster run its steps, and starts some if there is room.
func (g *registry) ownGPUs(b *Backend, sub uint32) {
	r := g.e.ranker(sub)
	t := g.e.beginTurn(&g.spare)
	r.enter(t)
	for _, u := range b.gpus {
		if u != nil && u.sub == sub {
			r.s.SetSpareOwner(u.id, b.owner)
		}
	}
	r.advance(g.e, t)
	r.mu.Unlock()
	g.e.finishTurn(t)
}

// setForecasting makes partitions forecast while any backend has offered spare work, even if it has nothing to do at the
// moment, as learners often pause briefly. Each call brings a forecast of every model.
func (g *registry) setForecasting() {
	on := slices.ContainsFunc(g.backends, func(b *Backend) bool { return b.owner != 0 })
	if !on && !g.foretelling {
		return
	}

	// Old forecasts may be of models that have gone.
	if on && !g.foretelling {
		for _, r := range *g.e.rankers.Load() {
			r.mu.Lock()
			r.s.ForgetForecasts()
			r.mu.Unlock()
		}
	}

	g.foretelling = on
	for _, p := range g.e.parts {
		t := g.e.beginTurn(&g.spare)
		p.enter(t)
		p.s.SetForecasts(t.now, on)
		p.collectOutputs(g.e, t)
		p.mu.Unlock()
		g.e.finishTurn(t)
	}
}

// abandonSpare withdraws all offers of a departing backend.
func (g *registry) abandonSpare(b *Backend) {
	for _, w := range b.works {
		g.withdrawSpare(b, w, w.subs)
	}
	b.works, b.owner = nil, 0
	g.setForecasting()
}
