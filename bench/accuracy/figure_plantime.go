package accuracy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/policy/scaling"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sim"
)

const (
	planInstances = 3                // per size
	planTimeMax   = 60 * time.Second // the published limit; stop there
)

// planSize is a size of the planning problem.
type planSize struct {
	varied                      string
	devices, variants, families int
}

// publishedPlanSize is the size of each dimension that §6.8 solves in under 60 s.
var publishedPlanSize = map[string]string{"devices": "160 in 60 s", "variants": "450 in 60 s", "families": "17 in 60 s"}

// drawPlanTimes is figure 10: the time of the exact program over devices, variants and families, each varied
// separately, and of the price plan at the same sizes.
func drawPlanTimes(ctx context.Context, in *Inputs) (*Drawing, error) {
	d := &Drawing{Header: []string{"varied", "devices", "variants", "families", "program_s_mean", "program_s_max", "price_ms_mean", "price_ms_max", "published"}}
	sizes := map[string][]planSize{
		"devices":  {{"devices", 20, 40, 9}, {"devices", 40, 40, 9}, {"devices", 80, 40, 9}, {"devices", 160, 40, 9}},
		"variants": {{"variants", 40, 18, 9}, {"variants", 40, 90, 9}, {"variants", 40, 225, 9}, {"variants", 40, 450, 9}},
		"families": {{"families", 40, 40, 3}, {"families", 40, 40, 9}, {"families", 40, 40, 17}},
	}

	for _, varied := range []string{"devices", "variants", "families"} {
		p := chart.Panel{Title: "time of a plan over " + varied, XLabel: varied, YLabel: "s"}
		for _, size := range sizes[varied] {
			program, price, err := timePlans(ctx, in, size)
			if err != nil {
				return nil, err
			}

			d.add(varied, size.devices, size.variants, size.families, program.mean().Seconds(), program.max().Seconds(),
				1e3*price.mean().Seconds(), 1e3*price.max().Seconds(), publishedPlanSize[varied])

			x := float64(map[string]int{"devices": size.devices, "variants": size.variants, "families": size.families}[varied])
			p.Add("exact program", x, program.mean().Seconds())
			p.Add("price", x, price.mean().Seconds())
		}
		d.Panels = append(d.Panels, p)
	}
	return d, nil
}

// times are the durations of instances.
type times []time.Duration

func (t times) mean() time.Duration {
	sum := time.Duration(0)
	for _, d := range t {
		sum += d
	}
	return sum / time.Duration(max(1, len(t)))
}

func (t times) max() time.Duration {
	most := time.Duration(0)
	for _, d := range t {
		most = max(most, d)
	}
	return most
}

// timePlans solves instances of a size with both plans.
func timePlans(ctx context.Context, in *Inputs, size planSize) (program, price times, err error) {
	ctx, cancel := context.WithTimeout(ctx, planInstances*(planTimeMax+10*time.Second))
	defer cancel()

	// Draw each instance from its number, so that leaving out a size does not change the others.
	for i := range planInstances {
		rng := rand.New(rand.NewPCG(in.Seed, uint64(i)))
		w := planWorld(rng, size)
		demand := make([]float64, size.families)
		for f := range demand {
			demand[f] = (0.5 + rng.Float64()) * 20 * float64(size.devices) / float64(size.families)
		}

		p := scaling.NewProgram(w, in.Settings[0].Gap)
		if err := p.Try(ctx, demand); err != nil {
			return nil, nil, fmt.Errorf("%d devices, %d variants, %d families: %w", size.devices, size.variants, size.families, err)
		}
		program = append(program, p.Elapsed)

		// Solve the same world and demand by prices.
		d, err := timePrice(w, demand)
		if err != nil {
			return nil, nil, err
		}
		price = append(price, d)
		in.say("%d devices, %d variants, %d families: program %v, price %v", size.devices, size.variants, size.families, p.Elapsed, d)
	}
	return program, price, nil
}

// planWorld draws families with variants on three kinds: half of the devices of one kind, and a quarter of each of
// two faster kinds.
func planWorld(rng *rand.Rand, size planSize) *sim.World {
	w := &sim.World{GPUs: size.devices}
	for g := range size.devices {
		// Half of the devices are of the slowest kind, as in the default cluster.
		w.Kinds = append(w.Kinds, []uint8{0, 1, 0, 2}[g%4])
	}

	for f := range size.families {
		m := sim.Model{Name: fmt.Sprint("f", f), SLO: sim.Duration(2e8)}
		n := size.variants/size.families + map[bool]int{true: 1}[f < size.variants%size.families]
		slow := 10 + 40*rng.Float64()

		for v := range n {
			// A heavier variant is more accurate, and its time grows faster than its accuracy.
			x := float64(v+1) / float64(n)
			variant := sim.Variant{Name: fmt.Sprint(m.Name, "-", v), Accuracy: 0.8 + 0.2*x}
			for _, speed := range []float64{1, 3 + rng.Float64(), 5 + rng.Float64()} {
				one := time.Duration(slow * (0.2 + 3*x*x) / speed * 1e6)
				p, err := profile.Linear(max(one/2, 1), one/2, 8)
				if err != nil {
					panic(err) // both are positive and short
				}
				variant.Profiles = append(variant.Profiles, p)
			}
			m.Variants = append(m.Variants, variant)
		}
		w.Models = append(w.Models, m)
	}
	return w
}

// timePrice renews prices for the same demand.
func timePrice(w *sim.World, demand []float64) (time.Duration, error) {
	m := plan.Market{Value: plan.DefaultValue, Capacity: make([]float64, 3)}
	for _, kind := range w.Kinds {
		m.Capacity[kind]++
	}
	for f := range w.Models {
		b := plan.Bidder{Rate: demand[f]}
		for v := range w.Models[f].Variants {
			for kind := range m.Capacity {
				if c := LeastCost(&w.Models[f], v, kind); c < 1e9 {
					b.Offers = append(b.Offers, plan.Offer{Kind: int32(kind), Accuracy: w.Models[f].Variants[v].Accuracy, Cost: c})
				}
			}
		}
		m.Bidders = append(m.Bidders, b)
	}

	var prices plan.Prices
	if err := prices.Renew(&m); err != nil { // the first renewal allocates its memory
		return 0, err
	}

	begun := time.Now()
	err := prices.Renew(&m)
	return time.Since(begun), err
}
