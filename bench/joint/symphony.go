package joint

import (
	"context"
	"math"

	"downbeat.dev/bench/policy"
	"downbeat.dev/core/sim"
)

// serveSymphony is Symphony's scheduler (its strongest form, policy.Relaxed) with the best networks. Where the method
// does not apply: a service has one network; each kind of GPU is a sub-cluster, and each service is served by one of
// them (§4.7); a frame's stage is a request with its own share of the latency; all sessions are admitted; nothing
// learns.
func serveSymphony(_ context.Context, t *trace) (*outcome, error) {
	return t.serve(t.bySymphony(0, policy.Relaxed))
}

// serveSymphonyLight is the same with the lightest networks, which fit the most requests.
func serveSymphonyLight(_ context.Context, t *trace) (*outcome, error) {
	return t.serve(t.bySymphony(-1, policy.Relaxed))
}

// bySymphony serves all streams with one network of each service: the nth, counted from the end if negative.
func (t *trace) bySymphony(n int, form policy.Form) serving {
	s := serving{streams: t.streams, fixed: make([]int, len(t.services))}
	homes, _ := t.assignServices(n, t.streams)
	for i := range t.services {
		all := t.services[i].networks
		s.fixed[i] = (n + len(all)) % len(all)
		m := sim.Model{Name: t.services[i].name, SLO: sim.Duration(t.services[i].slo), Profile: all[s.fixed[i]].profiles[homes[i]]}
		s.models = append(s.models, m)
	}
	s.server = func(w *sim.World, _ *sim.Frames) sim.Server {
		return &clusters{homes: homes, of: [kinds]sim.Server{policy.NewSymphonyOn(w, form, 0, oldGPUs), policy.NewSymphonyOn(w, form, oldGPUs, newGPUs)}}
	}
	return s
}

// assignServices assigns each service to a sub-cluster such that the fuller sub-cluster has the least load when some
// streams are served with the nth networks (§4.7, with demand instead of rates, see 0173). It tries all 512
// assignments. most is the use of the fuller sub-cluster's GPUs.
func (t *trace) assignServices(n int, streams []stream) (homes []int, most float64) {
	rates := t.rates(streams)
	need := make([][kinds]float64, len(t.services)) // GPUs
	for i := range t.services {
		all := t.services[i].networks
		for kind := range kinds {
			need[i][kind] = rates[i] * t.leastCost(i, (n+len(all))%len(all), kind) / float64(gpusOf[kind])
		}
	}

	// Nine services and two kinds are few enough to try every assignment.
	best, least := 0, math.Inf(1)
	for way := range 1 << len(need) {
		var load [kinds]float64
		for i := range need {
			load[way>>i&1] += need[i][way>>i&1]
		}
		if fuller := max(load[0], load[1]); fuller < least {
			best, least = way, fuller
		}
	}

	// The bits of the best assignment are the services' homes.
	homes = make([]int, len(need))
	for i := range homes {
		homes[i] = best >> i & 1
	}
	return homes, least
}

// gpusOf is the number of GPUs by kind.
var gpusOf = [kinds]int{oldGPUs, newGPUs}

// leastCost returns the GPU time of a request, in seconds, in the largest batch that takes half of the stage's SLO.
func (t *trace) leastCost(service, network, kind int) float64 {
	p := t.services[service].networks[network].profiles[kind]
	b := max(1, p.BatchMax(t.services[service].slo/2))
	return p.Exec(b).Seconds() / float64(b)
}

// clusters are sub-clusters with a scheduler each.
type clusters struct {
	homes []int // by service
	of    [kinds]sim.Server
}

// Arrive implements sim.Server.
func (c *clusters) Arrive(now sim.Time, r int32, model int32) {
	c.of[c.homes[model]].Arrive(now, r, model)
}

// Done implements sim.Server.
func (c *clusters) Done(now sim.Time, gpu int32) { c.of[kindOf(int(gpu))].Done(now, gpu) }

// Wake implements sim.Server.
func (c *clusters) Wake(now sim.Time) {
	for _, s := range c.of {
		if s.NextWake() <= now {
			s.Wake(now)
		}
	}
}

// NextWake implements sim.Server.
func (c *clusters) NextWake() sim.Time { return min(c.of[0].NextWake(), c.of[1].NextWake()) }
