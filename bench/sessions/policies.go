package sessions

import (
	"slices"

	"downbeat.dev/bench/policy"
)

// temporalLoss is the cost factor of running one request at a time on a GPU instead of several: the middle of the
// published 8 to 99 % (F10b), where actdet has 36 to 40.
const temporalLoss = 1.38

// Policy is a way to serve sessions.
type Policy struct {
	Name    string
	Summary string
	run     func(w *Workload, seed uint64) (Result, error)
}

// Policies returns all policies: Downbeat, then Rim, its ablations, and the systems with which it is compared.
func Policies() []Policy {
	placed := func(name, summary string, r rule) Policy {
		if r.temporal == 0 {
			r.temporal = 1
		}
		return Policy{name, summary, func(w *Workload, seed uint64) (Result, error) {
			// A rule without admission gets the sessions that Rim admits, so that all have the same load.
			if r.force {
				w.limitTo(admittedByRim(w))
			}
			return newRim(w, r).serveStreams(name, seed), nil
		}}
	}
	ours := func(name, summary string, c central) Policy {
		return Policy{name, summary, func(w *Workload, seed uint64) (Result, error) {
			c := c
			if c.server != nil {
				w.limitTo(admittedByRim(w))
			}
			c.w, c.seed = w, seed
			return c.serveStreams(name)
		}}
	}

	const all, fit = "all", "best-fit"
	return []Policy{
		ours("downbeat", "one queue per module, qualities by price, admission by demand and trial", central{adapt: true}),
		ours("downbeat-high", "the same, best qualities only", central{}),
		placed("rim", "best fit, two workers, cross-worker, demotion (Rim §3.3, §3.4, §4.3)", rule{qualities: all, choose: fit, cross: true, split: true}),
		placed("rim-high", "best qualities only", rule{qualities: "high", choose: fit, cross: true, split: true}),
		placed("rim-low", "lowest qualities only", rule{qualities: "low", choose: fit, cross: true, split: true}),
		placed("rim-rr", "workers in turn", rule{qualities: all, choose: "round-robin", force: true}),
		placed("rim-memory", "the worker with most memory left", rule{qualities: all, choose: "memory", force: true}),
		placed("rim-utilization", "the worker that is used least", rule{qualities: all, choose: "utilization", force: true}),
		placed("rim-ncdrop", "no session over several workers; one that fits nowhere is refused", rule{qualities: all, choose: fit}),
		placed("rim-nc", "no session over several workers, and none is refused", rule{qualities: all, choose: fit, force: true}),
		placed("rim-temporal", "one request at a time on a GPU", rule{qualities: all, choose: fit, cross: true, split: true, temporal: temporalLoss}),
		ours("nexus", "static shares of the latency, models packed onto GPUs (Shen et al.)", central{server: nexus}),
		ours("clipper", "static shares, adaptive batches (Crankshaw et al.)", central{server: clipper}),
	}
}

// admittedByRim returns how many of a workload's sessions Rim admits before it refuses one, the load for policies
// that refuse nobody.
func admittedByRim(w *Workload) int {
	if !w.UntilFull {
		return len(w.Streams)
	}
	p := newRim(w, rule{qualities: "all", choose: "best-fit", cross: true, split: true, temporal: 1})
	for i := range w.Streams {
		if !p.admitStream(i, 0) {
			return i
		}
	}
	return len(w.Streams)
}

// Select returns the policies in a comma-separated list, or all.
func Select(list string) ([]Policy, error) {
	return policy.SelectFrom(Policies(), func(p Policy) string { return p.Name }, list)
}

// Run serves a workload. The same seed gives the same result, except for AdmitMS, which is measured.
func (p Policy) Run(w Workload, seed uint64) (Result, error) {
	// Clone: a policy changes the streams, and the next one needs the original ones.
	w.Streams = slices.Clone(w.Streams)
	return p.run(&w, seed)
}
