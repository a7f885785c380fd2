package app

import (
	"errors"
	"fmt"
	"math"
	"time"

	"downbeat.dev/core/plan"
)

// Promise is a session as admission sees it: frames of an application at a rate, each within a latency.
type Promise struct {
	Graph    *Graph
	Profiles Profiles // of the lightest variants at or above the session's floor, the load that can always be kept
	Rate     float64  // frames/s
	Latency  time.Duration
	// Phase is the offset of the session's frames within their period, from a time common to all promises.
	Phase time.Duration
	// PhaseOf, if set, chooses Phase for a tried rate: the frames of an offer come at other times than those of the
	// requested rate.
	PhaseOf func(*Promise) time.Duration
	Offsets []time.Duration // by step: the time of the later steps; set by admission
	Batch   []int           // by step: the batch size that the split assumes; set by admission
	Demand  float64         // additional GPUs that the session takes; set by admission
	// Least is the lowest acceptable rate when GPUs are lost, frames/s; 0: Rate.
	Least float64
	Claim uint8 // the promise with the smaller claim gives way first; of equal claims, the later one
}

// Period returns the time from one frame to the next.
func (p *Promise) Period() time.Duration { return time.Duration(float64(time.Second) / p.Rate) }

// Capacity is the capacity for promises.
type Capacity struct {
	GPUs     int
	Spare    int           // GPUs that may be lost at a time: new promises are kept without them
	Measured float64       // GPUs that all requests take now, with and without sessions
	Hop      time.Duration // latency from one stage to the next
}

// trialDemand returns the largest demand, in GPUs, that is worth a trial.
func (c Capacity) trialDemand() float64 {
	return demandMost * plan.DefaultTargets().At(max(c.GPUs, 1)) * float64(c.GPUs)
}

// leaveOthers subtracts the GPUs of requests without a session: the measured use beyond used, the demand of the
// promises. It returns the larger of used and the measured use.
func (c *Capacity) leaveOthers(used float64) float64 {
	others := c.Measured - used
	if others <= 0 {
		return used
	}
	c.GPUs -= min(c.GPUs, int(math.Round(others)))
	return c.Measured
}

// Trial runs promises together in virtual time and reports whether all are kept. A nil Trial passes every set.
type Trial func(c Capacity, all []Promise) bool

const (
	// reserve is the part of a latency that no step uses at first: a dropped request has it for a second attempt.
	reserve = 0.3
	// demandMost limits the demand worth a trial, as a multiple of u*·GPUs. It exceeds 1: under load batches grow
	// beyond the size that the split assumes, and frames arrive more evenly than the arrivals with which u* was
	// measured.
	demandMost = 1.5
	// offerGrain is the resolution of offered latencies, in ns.
	offerGrain = 1e6
)

// splitShares are the parts of a latency that are divided among the stages, in the order in which Admit tries them.
// The rest is common to all stages. Budgets that use the whole latency leave no slack when two stages want a GPU at
// once (docs/decisions/0142), so the whole is divided only if single requests take that long.
var splitShares = []float64{0.6, 1}

// Admit decides whether a session may open beside the open ones: its demand must be at most about u* of the GPUs, and
// the trial of all sessions must pass. It returns the promise with its offsets, batch sizes and demand. A refusal
// contains rates and latencies that would be admitted now. The error reports invalid input.
func Admit(c Capacity, open []Promise, p Promise, trial Trial) (Promise, plan.Admission, error) {
	// GPUs that may be lost count for no promise, as long as one other GPU remains.
	c.GPUs -= min(c.Spare, max(c.GPUs-1, 0))

	capacity := c.trialDemand()
	used := 0.0
	for i := range open {
		used += open[i].Demand
	}
	used = c.leaveOthers(used)

	var a plan.Admission
	for _, share := range splitShares {
		keep := func(rate float64, latency time.Duration, b plan.StageBudgets) Promise {
			return p.with(rate, undivided(latency, share), share, b)
		}
		run := func(rate float64, latency time.Duration, b plan.StageBudgets) bool {
			return trial == nil || trial(c, append(open[:len(open):len(open)], keep(rate, latency, b)))
		}

		divided := plan.Session{App: p.Graph.Plan(p.Profiles, othersRates(p.Graph, open), c.Hop), Rate: p.Rate,
			Latency: time.Duration(math.Round(float64(p.Latency) * share)), Grain: time.Duration(math.Round(offerGrain * share))}
		var err error
		if a, err = plan.Admit(divided, []float64{used}, []float64{capacity}, run); err != nil {
			return p, a, fmt.Errorf("application %q: %w", p.Graph.Name, err)
		}
		a.OfferLatency = undivided(a.OfferLatency, share)
		if a.Admitted {
			return keep(p.Rate, divided.Latency, a.Budgets), a, nil
		}

		// Another share helps if time is short, not if GPUs are.
		var infeasible *plan.InfeasibleError
		if !errors.As(a.Refusal, &infeasible) || infeasible.Unit == "GPUs" {
			break
		}
	}
	return p, a, nil
}

// undivided returns the latency of which the share was divided, to the nanosecond: an offer is tried exactly as a
// request for it would be.
func undivided(latency time.Duration, share float64) time.Duration {
	return time.Duration(math.Round(float64(latency) / share))
}

// with returns the promise at another rate and latency, with the budgets b of the divided share.
func (p Promise) with(rate float64, latency time.Duration, share float64, b plan.StageBudgets) Promise {
	p.Rate, p.Latency, p.Batch, p.Demand = rate, latency, b.Batch, b.Total
	if p.PhaseOf != nil {
		p.Phase = p.PhaseOf(&p)
	}
	p.Offsets = make([]time.Duration, len(b.Offset))
	for j := range p.Offsets {
		p.Offsets[j] = time.Duration(reserve*float64(latency) + (1-reserve)*float64(b.Offset[j])/share)
	}
	return p
}

// othersRates returns the rate that the open sessions send to each step's model, in requests/s.
func othersRates(g *Graph, open []Promise) []float64 {
	rates := make([]float64, len(g.Steps))
	for i := range open {
		of := open[i].Graph
		for k := range of.Steps {
			for j := range g.Steps {
				if m := &g.Steps[j]; m.Model != "" && m.Model == of.Steps[k].Model && m.Version == of.Steps[k].Version {
					rates[j] += open[i].Rate * of.FanOut(k)
				}
			}
		}
	}
	return rates
}
