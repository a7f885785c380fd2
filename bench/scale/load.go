// Package scale runs clusters that grow and shrink with a changing load, in virtual time: the serving scheduler, an
// autoscaler that observes it, and GPUs that start after a delay (Symphony §4.4 and figure 14).
package scale

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
)

// Workload is models with changing rates: each has a daily wave with its own phase, compressed into the span, and
// occasionally twice its rate for some minutes. The paper's rates come from 150 hours of videos that are not public.
type Workload struct {
	Models   []profile.Entry
	Span     time.Duration
	profiles []*profile.Profile
	waves    []wave
}

// wave is the rate of one model.
type wave struct {
	mean, depth, phase, turns float64
	bursts                    []burst
}

// burst multiplies a rate from its beginning to its end, with edges of ten seconds.
type burst struct{ begin, end, factor float64 }

const burstEdge = 10 // seconds

// NewWorkload draws the rates of models whose mean total demand is about a share of gpus.
func NewWorkload(models []profile.Entry, gpus int, share float64, span time.Duration, seed uint64) (*Workload, error) {
	if len(models) == 0 || gpus < 1 || !(share > 0 && share <= 1) || span < time.Minute || span > 6*time.Hour {
		return nil, fmt.Errorf("%d models, %d GPUs, share %v, span %v: want some models and GPUs, a share up to 1, a span of 1m to 6h", len(models), gpus, share, span)
	}

	w := &Workload{Models: models, Span: span}
	rng := rand.New(rand.NewPCG(seed, 14))
	for _, e := range models {
		p, err := e.Profile()
		if err != nil {
			return nil, err
		}
		w.profiles = append(w.profiles, p)
	}

	// All rates are equal; the demand determines their level. Batches grow with the rate, so a request's cost falls:
	// three rounds converge.
	each := 1.0
	for range 3 {
		demand := 0.0
		for m, e := range models {
			c, _, err := plan.Cost(w.profiles[m], e.SLO, each)
			if err != nil {
				return nil, err
			}
			demand += each * c
		}
		each *= share * float64(gpus) / demand
	}

	for range models {
		v := wave{mean: each, depth: 0.3 + 0.4*rng.Float64(), phase: rng.Float64(), turns: 1 + float64(rng.IntN(3))}
		for range rng.IntN(3) {
			begin := rng.Float64() * span.Seconds()
			v.bursts = append(v.bursts, burst{begin, begin + 30 + 120*rng.Float64(), 1.5 + rng.Float64()})
		}
		w.waves = append(w.waves, v)
	}
	return w, nil
}

// Spread takes n entries from the whole zoo, with different batching and SLOs.
func Spread(zoo []profile.Entry, n int) []profile.Entry {
	var out []profile.Entry
	for i := range n {
		out = append(out, zoo[i*len(zoo)/n])
	}
	return out
}

// Rate returns a model's rate at a time, in requests/s.
func (w *Workload) Rate(model int, at time.Duration) float64 {
	v, t := &w.waves[model], at.Seconds()

	rate := v.mean * (1 + v.depth*math.Sin(2*math.Pi*(v.phase+v.turns*t/w.Span.Seconds())))
	for _, b := range v.bursts {
		// Distance from the nearer end of the burst, for its edges.
		in := min(t-b.begin, b.end-t) / burstEdge
		rate *= 1 + (b.factor-1)*min(1, max(0, in))
	}
	return rate
}

// Demand returns the GPUs that the rates at a time need at u* = 1.
func (w *Workload) Demand(at time.Duration) float64 {
	sum := 0.0
	for m, e := range w.Models {
		rate := w.Rate(m, at)
		c, _, err := plan.Cost(w.profiles[m], e.SLO, rate)
		if err != nil {
			panic(err) // NewWorkload has computed it before
		}
		sum += rate * c
	}
	return sum
}

// Arrivals draws the requests: for each model a renewal process with these gaps whose rate changes every tenth of a
// second.
func (w *Workload) Arrivals(gaps arrivals.Gaps, seed uint64) []arrivals.Arrival {
	const step = 100 * time.Millisecond
	var out []arrivals.Arrival
	for m := range w.Models {
		rng := rand.New(rand.NewPCG(seed, uint64(1000+m)))

		// A request arrives whenever the expectation has grown by a gap.
		left := gaps.Draw(rng)
		for at := time.Duration(0); at < w.Span; at += step {
			rate := w.Rate(m, at)
			most := rate * step.Seconds()
			for done := 0.0; ; left = gaps.Draw(rng) {
				if done+left > most {
					left -= most - done
					break
				}
				done += left
				when := at + time.Duration(done/rate*float64(time.Second))
				out = append(out, arrivals.Arrival{At: min(when, w.Span-1), Model: int32(m)})
			}
		}
	}

	// Models were drawn one after another; the simulator needs the order of time.
	sort.Slice(out, func(i, j int) bool { return out[i].At < out[j].At })
	return out
}

// Clairvoyant returns, by second, the fewest GPUs that sustain the rates of that second and of those until the next
// possible change: the optimum with known rates and GPUs without delay.
func (w *Workload) Clairvoyant(targets plan.Targets, period time.Duration) []int {
	seconds := int(w.Span / time.Second)
	// The demand extends one period beyond the span: the last seconds look ahead, too.
	demand := make([]float64, seconds+int(period/time.Second)+1)
	for s := range demand {
		demand[s] = w.Demand(min(time.Duration(s)*time.Second, w.Span))
	}

	out := make([]int, seconds)
	for s := range out {
		out[s] = targets.GPUsFor(slices.Max(demand[s : s+int(period/time.Second)+1]))
	}
	return out
}
