package plan

// reconfiguring is a placement that is being changed to the wanted one.
type reconfiguring struct {
	f       *Fleet
	now     Placement
	wanted  Placement
	differs []place // where a step may be due, by model and GPU
	offers  []int   // by model: GPUs that offer it
	missing []int   // by model: GPUs that must offer it and do not yet
	unready []int   // by model: those of them on which it is not warm
	static  []int64 // by GPU: of the loaded models
	dynamic []int64 // by GPU: the largest of the loaded models
	steps   []Step
	gaps    []int32
}

type place struct{ model, gpu int32 }

func newReconfiguring(f *Fleet, present, wanted Placement) *reconfiguring {
	r := &reconfiguring{f: f, wanted: wanted, now: make(Placement, len(present)), offers: make([]int, len(present)), missing: make([]int, len(present)),
		unready: make([]int, len(present)), static: make([]int64, len(f.Memory)), dynamic: make([]int64, len(f.Memory))}

	// Counts by model make it unnecessary for each step to scan all GPUs.
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

// nextStep chooses the next step: additions before removals, and no more removals than necessary.
func (r *reconfiguring) nextStep() (Step, bool) {
	// Drop the places that have arrived, so that the end of a plan is cheap.
	open := r.differs[:0]
	for _, p := range r.differs {
		if r.now[p.model][p.gpu] != r.wanted[p.model][p.gpu] {
			open = append(open, p)
		}
	}
	r.differs = open

	// The lowest rank wins. Among equals the lowest model and GPU win, so that one snapshot has one plan.
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
	rankFinish = iota // complete what has begun: warm up; offer a model that is warm on all its GPUs
	rankRetire        // withdraw a model that is offered on all its wanted GPUs
	rankUnload        // unload unused models
	rankLoad          // load a model if there is room
	rankOffer         // offer a model that is warm on some of its GPUs
	rankThin          // withdraw a model that is offered elsewhere
	rankGap           // withdraw a model that is offered nowhere else
	notDue
)

// stepAt returns the next step of one model on one GPU, and its rank.
func (r *reconfiguring) stepAt(p place) (StepKind, int) {
	now := r.now[p.model][p.gpu]
	if r.wanted[p.model][p.gpu] == Offered {
		switch now {
		case Warm:
			// The GPUs of a sub-cluster offer a model together. A GPU that offered it alone would be another
			// sub-cluster.
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

	// The rank of a removal depends on where else the model is offered.
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

// fits reports whether a GPU has room for one more model.
func (r *reconfiguring) fits(p place) bool {
	static, dynamic := r.static[p.gpu]+r.f.Static[p.model], max(r.dynamic[p.gpu], r.f.Dynamic[p.model])
	if _, trunk := r.f.trunkOf(int(p.model)); trunk != 0 { // models that are already loaded may share part of it
		static, dynamic = r.f.weigh(r.now, int(p.gpu), int(p.model))
	}
	return static+dynamic <= r.f.Memory[p.gpu]
}

// weigh computes the memory of a GPU's models.
func (r *reconfiguring) weigh(g int32) {
	r.static[g], r.dynamic[g] = r.f.weigh(r.now, int(g), Nowhere)
}

// apply performs a step.
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

	// Only these two change the memory of a GPU.
	if s.Kind == StepLoad || s.Kind == StepUnload {
		r.weigh(s.GPU)
	}
	s.Number = len(r.steps) + 1
	r.steps = append(r.steps, s)
}
