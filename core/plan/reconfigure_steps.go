package plan

// reconfiguring is a placement on its way to the wanted one.
type reconfiguring struct {
	f       *Fleet
	now     Placement
	wanted  Placement
	differs []place // where a step may be due, by model and GPU
	offers  []int   // by model: GPUs that offer it
	missing []int   // by model: GPUs that are to offer it and do not yet
	unready []int   // by model: those of them that it is not warm on
	static  []int64 // by GPU: of what is loaded
	dynamic []int64 // by GPU: the largest of what is loaded
	steps   []Step
	gaps    []int32
}

type place struct{ model, gpu int32 }

func newReconfiguring(f *Fleet, present, wanted Placement) *reconfiguring {
	r := &reconfiguring{f: f, wanted: wanted, now: make(Placement, len(present)), offers: make([]int, len(present)), missing: make([]int, len(present)),
		unready: make([]int, len(present)), static: make([]int64, len(f.Memory)), dynamic: make([]int64, len(f.Memory))}

	// Counts by model spare each step a look at all GPUs.
	for m := range present {
		r.now[m] = append([]Residence(nil), present[m]...)
		for g := range present[m] {
			if present[m][g] == Offered {
				r.offers[m]++
			} else if wanted[m][g] == Offered {
				r.missing[m]++
				if present[m][g] != Warm {
					r.unready[m]++
				}
			}
			if present[m][g] != wanted[m][g] {
				r.differs = append(r.differs, place{int32(m), int32(g)})
			}
		}
	}

	for g := range f.Memory {
		r.weigh(int32(g))
	}
	return r
}

// nextStep chooses the next step: additions before removals, and removals only as far as necessary.
func (r *reconfiguring) nextStep() (Step, bool) {
	// What has arrived drops out, so that a plan's end is cheap.
	open := r.differs[:0]
	for _, p := range r.differs {
		if r.now[p.model][p.gpu] != r.wanted[p.model][p.gpu] {
			open = append(open, p)
		}
	}
	r.differs = open

	// The lowest rank wins; among equals the lowest model and GPU, so that one snapshot has one plan.
	best, bestRank := Step{}, notDue
	for _, p := range r.differs {
		if kind, rank := r.stepAt(p); rank < bestRank {
			best, bestRank = Step{Kind: kind, Model: p.model, GPU: p.gpu}, rank
			if rank == rankFinish {
				break
			}
		}
	}
	return best, bestRank < notDue
}

// The order of due steps.
const (
	rankFinish = iota // finish what has begun: warm up; offer a model that is warm on all its GPUs
	rankRetire        // withdraw a model that is offered wherever it should be
	rankUnload        // unload unused models
	rankLoad          // load what there is room for
	rankOffer         // a model that is warm on some of its GPUs
	rankThin          // a model that is offered somewhere else
	rankGap           // a model that is offered nowhere else
	notDue
)

// stepAt is the next step of one model on one GPU, and how soon it should be.
func (r *reconfiguring) stepAt(p place) (StepKind, int) {
	now := r.now[p.model][p.gpu]
	if r.wanted[p.model][p.gpu] == Offered {
		switch now {
		case Warm:
			// The GPUs of a sub-cluster offer a model together: one that has it alone would be another sub-cluster.
			if r.unready[p.model] > 0 {
				return StepOffer, rankOffer
			}
			return StepOffer, rankFinish
		case Loaded:
			return StepWarmUp, rankFinish
		}

		if r.fits(p) {
			return StepLoad, rankLoad
		}
		return StepLoad, notDue
	}

	// A removal: its rank depends on who else offers the model.
	switch {
	case now != Offered:
		return StepUnload, rankUnload
	case r.missing[p.model] == 0:
		return StepWithdraw, rankRetire
	case r.offers[p.model] > 1:
		return StepWithdraw, rankThin
	}
	return StepWithdraw, rankGap
}

// fits reports whether a GPU has room for a model more.
func (r *reconfiguring) fits(p place) bool {
	static, dynamic := r.static[p.gpu]+r.f.Static[p.model], max(r.dynamic[p.gpu], r.f.Dynamic[p.model])
	if _, trunk := r.f.trunkOf(int(p.model)); trunk != 0 { // models that are loaded already may share part of it
		static, dynamic = r.f.weigh(r.now, int(p.gpu), int(p.model))
	}
	return static+dynamic <= r.f.Memory[p.gpu]
}

// weigh computes the memory of a GPU's models.
func (r *reconfiguring) weigh(g int32) {
	r.static[g], r.dynamic[g] = r.f.weigh(r.now, int(g), Nowhere)
}

// apply takes a step.
func (r *reconfiguring) apply(s Step) {
	at := &r.now[s.Model][s.GPU]
	switch s.Kind {
	case StepLoad:
		*at = Loaded
	case StepWarmUp:
		*at = Warm
		r.unready[s.Model]--
	case StepOffer:
		*at = Offered
		r.offers[s.Model]++
		r.missing[s.Model]--
	case StepWithdraw:
		*at = Warm
		r.offers[s.Model]--
		if r.offers[s.Model] == 0 && r.missing[s.Model] > 0 {
			r.gaps = append(r.gaps, s.Model)
		}
	case StepUnload:
		*at = Absent
	}

	// Only these two change a GPU's memory.
	if s.Kind == StepLoad || s.Kind == StepUnload {
		r.weigh(s.GPU)
	}
	s.Number = len(r.steps) + 1
	r.steps = append(r.steps, s)
}
