package plan

import (
	"fmt"
	"slices"
)

// Rollout is a plan that is being applied. The due step follows from the present placement, so nothing is lost if its
// executor stops half-way. It is not safe for concurrent use.
type Rollout struct {
	Number         uint64 // of the plan
	Fleet          Fleet
	Before, Wanted Placement // the placement at the start, and the wanted one
	LeftOut        []LeftOut
	// Gaps are models that are not offered for a while, as in Reconfiguration: the predicted ones, and those caused
	// by loads that ended in another order.
	Gaps []int32
	lost []bool // by GPU
}

// LeftOut is a model that a GPU did not get.
type LeftOut struct {
	Model, GPU int32
	Why        string
}

// NewRollout starts to apply a plan. The returned steps and gaps hold if nothing fails.
func NewRollout(number uint64, f Fleet, present, wanted Placement) (*Rollout, Reconfiguration, error) {
	steps, err := Reconfigure(f, present, wanted)
	if err != nil {
		return nil, Reconfiguration{}, err
	}
	if err := refuseOrphans(present, wanted); err != nil {
		return nil, Reconfiguration{}, err
	}

	r := &Rollout{Number: number, Fleet: f, Before: settledPlacement(present), Wanted: clonePlacement(wanted),
		Gaps: slices.Clone(steps.Gaps), lost: make([]bool, len(f.Memory))}
	return r, steps, nil
}

// refuseOrphans refuses a plan that removes a model from the last GPU that offers it. Only the model's owner may
// unload it for good.
func refuseOrphans(present, wanted Placement) error {
	for m := range present {
		if slices.Contains(present[m], Offered) && !slices.Contains(wanted[m], Offered) {
			return refuse(fmt.Sprintf("model %d: wanted", m), "nowhere", "at least one GPU, since it is served now")
		}
	}
	return nil
}

// Left returns the number of remaining steps if nothing fails.
func (r *Rollout) Left(present Placement) int {
	left, err := Reconfigure(r.Fleet, r.maskLost(present), r.Wanted)
	if err != nil {
		return 0
	}
	return len(left.Steps)
}

// LeaveOut removes a model from the wanted placement of a GPU that failed to load it. If no GPU would offer the model
// any more, it stays where it is, and models that have not arrived yet make room for it.
func (r *Rollout) LeaveOut(present Placement, model, gpu int32, why string) {
	r.LeftOut = append(r.LeftOut, LeftOut{model, gpu, why})
	r.Wanted[model][gpu] = Absent
	r.keepServed(r.maskLost(present))
}

// Lose removes a GPU from the plan. The GPU has left, and its models when it returns do not matter to this plan.
func (r *Rollout) Lose(present Placement, gpu int32) {
	if r.lost[gpu] {
		return
	}
	r.lost[gpu] = true
	for m := range r.Wanted {
		if r.Wanted[m][gpu] == Offered {
			r.LeftOut = append(r.LeftOut, LeftOut{int32(m), gpu, "the GPU has left"})
		}
		r.Wanted[m][gpu] = Absent
	}
	r.keepServed(r.maskLost(present))
}

// Lost reports whether a GPU was lost while the plan was applied.
func (r *Rollout) Lost(gpu int32) bool { return r.lost[gpu] }

// RollBack makes the placement at the start the wanted one, on the GPUs that are still present.
func (r *Rollout) RollBack(present Placement) {
	r.Wanted = r.maskLost(r.Before)
	r.keepServed(r.maskLost(present))
}

// keepServed keeps models that no GPU would offer any more in their place, or returns them to it, until every GPU has
// room for its wanted models.
func (r *Rollout) keepServed(present Placement) {
	kept := make([]bool, len(r.Wanted))
	for changed := true; changed; {
		changed = false
		for m := range r.Wanted {
			if !kept[m] && !slices.Contains(r.Wanted[m], Offered) && slices.Contains(r.Before[m], Offered) {
				kept[m], changed = true, true
				r.keepModel(present, int32(m))
			}
		}

		// A model that stays may take the room of another one.
		for g := range r.Fleet.Memory {
			changed = r.leaveOutOthers(present, kept, g) || changed
		}
	}
}

// keepModel wants a model where it is offered; otherwise where it is loaded; otherwise where it was at the start. A
// GPU that failed to load it is not tried again.
func (r *Rollout) keepModel(present Placement, model int32) {
	for _, least := range []Residence{Offered, Loaded, Absent} {
		for g, at := range present[model] {
			failed := slices.ContainsFunc(r.LeftOut, func(x LeftOut) bool { return x.Model == model && x.GPU == int32(g) })
			if r.lost[g] || at < least || at == Absent && (failed || r.Before[model][g] != Offered) {
				continue
			}
			r.Wanted[model][g] = Offered
		}
		if slices.Contains(r.Wanted[model], Offered) {
			return
		}
	}
}

// leaveOutOthers removes models that a GPU does not have yet from its wanted ones until the others fit: the largest
// first, and kept models last. Its present models always fit.
func (r *Rollout) leaveOutOthers(present Placement, kept []bool, gpu int) (changed bool) {
	for r.Fleet.needs(r.Wanted, gpu) > r.Fleet.Memory[gpu] {
		out := Nowhere
		for m := range r.Wanted {
			if r.Wanted[m][gpu] == Absent || present[m][gpu] != Absent {
				continue
			}
			if out == Nowhere || kept[out] && !kept[m] || kept[out] == kept[m] && r.Fleet.Static[m] > r.Fleet.Static[out] {
				out = m
			}
		}
		if out == Nowhere {
			return changed
		}

		r.Wanted[out][gpu], changed = Absent, true
		r.LeftOut = append(r.LeftOut, LeftOut{int32(out), int32(gpu), "another model stays in its place"})
	}
	return changed
}

// maskLost returns a placement without the lost GPUs.
func (r *Rollout) maskLost(p Placement) Placement {
	p = clonePlacement(p)
	for m := range p {
		for g := range p[m] {
			if r.lost[g] {
				p[m][g] = Absent
			}
		}
	}
	return p
}

// settledPlacement returns the placement without the models that are being removed.
func settledPlacement(p Placement) Placement {
	p = clonePlacement(p)
	for m := range p {
		for g := range p[m] {
			if p[m][g] != Offered {
				p[m][g] = Absent
			}
		}
	}
	return p
}

func clonePlacement(p Placement) Placement {
	all := make(Placement, len(p))
	for m := range p {
		all[m] = slices.Clone(p[m])
	}
	return all
}
