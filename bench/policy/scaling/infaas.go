package scaling

import (
	"context"

	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

const (
	// infaasFull is the share of its capacity above which a family is short of capacity.
	infaasFull = 0.95
	// infaasSlack is the share below which a family may trade capacity for accuracy or devices.
	infaasSlack = 0.4
	// infaasSteps bounds the changes for one family in one second.
	infaasSteps = 8
)

// infaas is INFaaS-Accuracy (Proteus §6.1.1): INFaaS (Romero et al., ATC '21) with accuracy as the objective and the
// cluster's size as the constraint. A family that is short of capacity repeatedly makes the change that costs the
// least accuracy: it takes an unused device or one that a family with slack can spare, or makes a variant on one of
// its own lighter. A family with slack makes a variant heavier, or releases a device. The public simulator decides
// every ten seconds; the paper says that INFaaS decides as requests arrive and reacts first, so here it decides every
// second.
type infaas struct {
	ctx     context.Context
	program *Program
	failed  error
}

func newINFaaS(ctx context.Context, w *sim.World, s Settings) Policy {
	a := &infaas{ctx: ctx, program: NewProgram(w, s.Gap)}
	return &planned{newHosted(w, a, greedyBatch, s.LoadTime), a.program, func() error { return a.failed }}
}

// greedyBatch runs the queued requests at once, as many as the head's deadline allows.
func greedyBatch(w *sim.World, now sched.Time, h *host) (skip, b int, wake sched.Time) {
	return 0, h.queue.fitBatch(w, h.profile, 0, now), 0
}

// plan implements planner. The first placement is the exact program's.
func (a *infaas) plan(now sched.Time, p *hosted) []placement {
	// At the start there is no state to change, so solve the exact program.
	if now == 0 {
		plan, err := a.program.solve(a.ctx, firstRates(p.w), nil)
		a.failed = err
		return plan
	}

	state := a.read(p)
	changed := false
	for family := range p.w.Models {
		rate := max(p.demand.fast(family), p.demand.smoothed[family], demandMin)
		for range infaasSteps {
			if state.capacity(family)*infaasFull >= rate || !state.grow(family, p.demand) {
				break
			}
			changed = true
		}

		// Raise accuracy only if much capacity is left, so that the next second does not undo it.
		if state.capacity(family)*infaasSlack > rate && state.relax(family, rate) {
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return state.placements(p.demand)
}

// infaasState is the hosted variants while they are being changed.
type infaasState struct {
	program *Program
	hosts   []infaasHost
}

type infaasHost struct {
	kind, family, variant int // family -1: nothing
}

func (a *infaas) read(p *hosted) *infaasState {
	s := &infaasState{program: a.program}
	for i := range p.hosts {
		h := &p.hosts[i]
		s.hosts = append(s.hosts, infaasHost{h.kind, int(h.family), int(h.variant)})
	}
	return s
}

// capacity returns a family's requests/s.
func (s *infaasState) capacity(family int) float64 {
	sum := 0.0
	for _, h := range s.hosts {
		if h.family == family {
			sum += s.program.capacity(h.kind, family, h.variant)
		}
	}
	return sum
}

// grow adds capacity to a family by the change that costs the least accuracy; false: there is none.
func (s *infaasState) grow(family int, d *demand) bool {
	// Find the change that costs the least accuracy; 2 exceeds every cost.
	best, change, least := -1, infaasHost{}, 2.0
	for i, h := range s.hosts {
		switch {
		case h.family == family:
			// Option: the next lighter variant on one of its devices.
			if v := s.nearestVariant(h, false); v >= 0 {
				if cost := s.accuracy(family, h.variant) - s.accuracy(family, v); cost < least {
					best, change, least = i, infaasHost{h.kind, family, v}, cost
				}
			}
		case h.family < 0 || s.canSpare(i, d):
			if v := s.heaviest(h.kind, family); v >= 0 {
				if cost := 1 - s.accuracy(family, v); cost < least {
					best, change, least = i, infaasHost{h.kind, family, v}, cost
				}
			}
		}
	}

	if best < 0 {
		return false
	}
	s.hosts[best] = change
	return true
}

// canSpare reports whether the family of a device easily serves its demand without it.
func (s *infaasState) canSpare(host int, d *demand) bool {
	h := s.hosts[host]
	rest := s.capacity(h.family) - s.program.capacity(h.kind, h.family, h.variant)
	rate := max(d.fast(h.family), d.smoothed[h.family], demandMin)
	return rate < 2*infaasSlack*rest
}

// relax makes one variant of a family with slack heavier; false: it already has the heaviest.
func (s *infaasState) relax(family int, rate float64) bool {
	for i, h := range s.hosts {
		if h.family != family {
			continue
		}
		if v := s.nearestVariant(h, true); v >= 0 {
			before := s.program.capacity(h.kind, family, h.variant)
			after := s.program.capacity(h.kind, family, v)
			if (s.capacity(family)-before+after)*infaasFull >= rate {
				s.hosts[i].variant = v
				return true
			}
		}
	}
	return false
}

func (s *infaasState) accuracy(family, variant int) float64 {
	return s.program.models[family].Variants[variant].Accuracy
}

// nearestVariant returns the usable variant next to a host's in accuracy: the heavier one, or a lighter one that is
// faster; -1: none.
func (s *infaasState) nearestVariant(h infaasHost, heavier bool) int {
	best := -1
	now := s.accuracy(h.family, h.variant)
	for v := range s.program.models[h.family].Variants {
		a, c := s.accuracy(h.family, v), s.program.capacity(h.kind, h.family, v)
		faster := c > s.program.capacity(h.kind, h.family, h.variant)

		// A lighter variant must also be faster to be useful.
		if c == 0 || heavier && a <= now || !heavier && (a >= now || !faster) {
			continue
		}

		// Choose the nearest in accuracy, to keep steps small.
		if best < 0 || heavier == (a < s.accuracy(h.family, best)) {
			best = v
		}
	}
	return best
}

// heaviest returns the most accurate variant of a family that meets its SLO on a kind; -1: none.
func (s *infaasState) heaviest(kind, family int) int {
	best := -1
	for v := range s.program.models[family].Variants {
		if s.program.capacity(kind, family, v) > 0 && (best < 0 || s.accuracy(family, v) > s.accuracy(family, best)) {
			best = v
		}
	}
	return best
}

// placements returns the state as a plan: each device serves its family in proportion to its capacity.
func (s *infaasState) placements(d *demand) []placement {
	var plan []placement
	for _, h := range s.hosts {
		if h.family < 0 {
			continue
		}

		rate := max(d.fast(h.family), demandMin) * s.program.capacity(h.kind, h.family, h.variant) / s.capacity(h.family)
		found := false
		for i := range plan {
			if x := &plan[i]; x.kind == h.kind && int(x.family) == h.family && int(x.variant) == h.variant {
				x.devices++
				x.rate += rate
				found = true
			}
		}

		if !found {
			plan = append(plan, placement{h.kind, int32(h.family), int32(h.variant), 1, rate})
		}
	}
	return plan
}
