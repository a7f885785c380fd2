package plan

import (
	"cmp"
	"slices"
)

// Due returns the steps to take now. They may be offers or withdrawals of one model, all of one kind, so that the
// GPUs of a sub-cluster change together; these cost nothing and are taken at once. Or they are loads and unloads, at
// most one per backend, which run in parallel. A load that was ordered is present as Loaded, and its next step is
// StepWarmUp. The backend performs that step by itself, so the caller only waits for it.
//
// busy are GPUs with a load or an unload in progress; their backends get no further step until it has ended. The plan
// is applied when no step is due and none is in progress. Models on lost GPUs do not count.
func (r *Rollout) Due(present Placement, busy []int32) []Step {
	s := newReconfiguring(&r.Fleet, r.maskLost(present), r.Wanted)
	first, rank := s.firstSwitch()
	if rank <= rankRetire {
		return s.switchesWith(first, rank)
	}

	// A step that removes an offer, or offers a model on only some of its GPUs, waits until nothing else is left to
	// do: a load in progress may make it unnecessary.
	if steps := s.backendSteps(busy); len(steps) > 0 || len(busy) > 0 {
		return steps
	}
	if rank == notDue {
		return nil
	}
	if rank == rankGap && !slices.Contains(r.Gaps, first.Model) {
		r.Gaps = append(r.Gaps, first.Model)
	}
	return s.switchesWith(first, rank)
}

// firstSwitch returns the offer or withdrawal that should come first, and its rank.
func (r *reconfiguring) firstSwitch() (first Step, best int) {
	best = notDue
	for _, p := range r.differs {
		kind, rank := r.stepAt(p)
		if (kind == StepOffer || kind == StepWithdraw) && rank < best {
			first, best = Step{Kind: kind, Model: p.model, GPU: p.gpu}, rank
		}
	}
	return first, best
}

// switchesWith returns an offer or a withdrawal together with those of the same model and rank. Withdrawals that
// reduce a model's offers go one by one, so that no more offers are lost than necessary.
func (r *reconfiguring) switchesWith(first Step, rank int) []Step {
	steps := []Step{first}
	if first.Kind == StepWithdraw && rank != rankRetire {
		return steps
	}
	for _, p := range r.differs {
		if kind, also := r.stepAt(p); p.model == first.Model && p.gpu != first.GPU && kind == first.Kind && also == rank {
			steps = append(steps, Step{Kind: kind, Model: p.model, GPU: p.gpu})
		}
	}
	return steps
}

// backendSteps returns for each backend that is not busy the load, warm-up or unload that it should do first, in the
// order of models and GPUs.
func (r *reconfiguring) backendSteps(busy []int32) (steps []Step) {
	isBusy := func(host int32) bool {
		return slices.ContainsFunc(busy, func(g int32) bool { return r.f.hostOf(g) == host })
	}

	var ranks []int // of steps
	for _, p := range r.differs {
		kind, rank := r.stepAt(p)
		host := r.f.hostOf(p.gpu)
		if kind == StepOffer || kind == StepWithdraw || rank == notDue || isBusy(host) {
			continue
		}

		step := Step{Kind: kind, Model: p.model, GPU: p.gpu}
		i := slices.IndexFunc(steps, func(s Step) bool { return r.f.hostOf(s.GPU) == host })
		switch {
		case i < 0:
			steps, ranks = append(steps, step), append(ranks, rank)
		case rank < ranks[i]:
			steps[i], ranks[i] = step, rank
		}
	}

	slices.SortFunc(steps, func(a, b Step) int { return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.GPU, b.GPU)) })
	return steps
}
