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
	Profiles Profiles // of the lightest variants at or above the session's floor: what can be kept under any load
	Rate     float64  // frames/s
	Latency  time.Duration
	// Phase is when in its period the session's frames come, from any moment that all promises share.
	Phase time.Duration
	// PhaseOf, when set, chooses Phase for the rate that is tried: an offer's frames come at other times than what was asked for.
	PhaseOf func(*Promise) time.Duration
	Offsets []time.Duration // by step: what lies behind it; admission sets them
	Batch   []int           // by step: the batch that the split counts with; admission sets them
	Demand  float64         // GPUs that it takes beside the others; admission sets it
	// Least is the rate that has to do while GPUs lack, frames/s; 0: Rate.
	Least float64
	Claim uint8 // of two promises the one with the smaller claim gives way, of equal ones the later
}

// Period is the time from a frame to the next.
func (p *Promise) Period() time.Duration { return time.Duration(float64(time.Second) / p.Rate) }

// Capacity is what promises are kept with.
type Capacity struct {
	GPUs     int
	Spare    int           // of these, as many may be lost at a time: new promises are kept without them
	Measured float64       // GPUs that all requests take now, those of sessions and others
	Hop      time.Duration // from a stage to the next
}

// trialDemand is the demand up to which a trial is worth its time, in GPUs.
func (c Capacity) trialDemand() float64 {
	return demandMost * plan.DefaultTargets().At(max(c.GPUs, 1)) * float64(c.GPUs)
}

// leaveOthers takes away what is measured beyond the promises, whose demand is used: the GPUs of requests without a session. used comes
// back with them.
func (c *Capacity) leaveOthers(used float64) float64 {
	others := c.Measured - used
	if others <= 0 {
		return used
	}
	c.GPUs -= min(c.GPUs, int(math.Round(others)))
	return c.Measured
}

// Trial runs promises together in virtual time and reports whether all are kept. Nil passes everything.
type Trial func(c Capacity, all []Promise) bool

const (
	// reserve is the part of a latency that no step may count on at first: whose request is dropped has it for a second
	// attempt.
	reserve = 0.3
	// demandMost bounds the demand, of u*·GPUs, at which a trial is worth its time: under load batches grow beyond those that the
	// split counts with, and frames come more evenly than the arrivals for which u* was measured.
	demandMost = 1.5
	// offerGrain is the least difference between latencies that are offered, in ns: what people read and ask for.
	offerGrain = 1e6
)

// splitShares are the parts of a latency that are divided among the stages; what is left is everybody's, in proportion.
// Budgets that use all of it leave no room for two stages that want a GPU at once (docs/decisions/0142), so all of
// it is only divided where single requests take that long.
var splitShares = []float64{0.6, 1}

// Admit decides whether a session may open beside those that are open: its demand must be near u* of the GPUs at most, and
// the trial of all of them must pass. The promise that comes back has its offsets, batch sizes and demand where it was admitted. A refusal's
// offers are rates and latencies that would be admitted now. The error is of input that makes no sense.
func Admit(c Capacity, open []Promise, p Promise, trial Trial) (Promise, plan.Admission, error) {
	// What may be lost promises nothing, as long as there is anything else.
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

		// Another division helps where time lacks, not where GPUs do.
		var infeasible *plan.InfeasibleError
		if !errors.As(a.Refusal, &infeasible) || infeasible.Unit == "GPUs" {
			break
		}
	}
	return p, a, nil
}

// undivided is the latency of which a share was divided, to the nanosecond: what is offered is tried as it would be if asked for.
func undivided(latency time.Duration, share float64) time.Duration {
	return time.Duration(math.Round(float64(latency) / share))
}

// with is the promise at another rate and latency, of which a share was divided.
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

// othersRates is what open sessions ask of each step's model, in requests/s.
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
