package plans

import (
	"context"
	"math/rand/v2"

	"downbeat.dev/bench/solver"
	"downbeat.dev/core/plan"
)

// MarketInstance draws families of variants on kinds of GPUs. A variant costs 1.2 to 2.7 times the previous one and
// covers a random part of the remaining distance to an accuracy of 0.98. Kinds differ in speed by up to five times,
// and each variant by ±20 % in addition. Together, the kinds sustain load times the demand of all families' best
// variants on the first kind, divided at random.
func MarketInstance(families, variants, kinds int, load float64, seed uint64) *plan.Market {
	rng := rand.New(rand.NewPCG(seed, 17))
	m := &plan.Market{Value: plan.DefaultValue}
	speed, share, shares := make([]float64, kinds), make([]float64, kinds), 0.0
	for k := range kinds {
		speed[k], share[k] = 1+4*rng.Float64(), 0.1+rng.Float64()
		shares += share[k]
	}

	full := 0.0
	for range families {
		b := plan.Bidder{Rate: 200 * rng.ExpFloat64()}
		cost, accuracy := 0.0005+0.002*rng.Float64(), 0.4+0.3*rng.Float64()

		// A better variant costs more, by a random factor; accuracies crowd towards the top, as in zoos.
		for range variants {
			for k := range kinds {
				b.Offers = append(b.Offers, plan.Offer{Kind: int32(k), Accuracy: accuracy, Cost: cost / speed[k] * (0.8 + 0.4*rng.Float64())})
			}
			full += b.Rate * cost / float64(variants)
			cost *= 1.2 + 1.5*rng.Float64()
			accuracy += (0.98 - accuracy) * rng.Float64()
		}

		m.Bidders = append(m.Bidders, b)
	}

	for k := range kinds {
		m.Capacity = append(m.Capacity, full*load*share[k]/shares/speed[k])
	}
	return m
}

// ExactMarket solves a market's linear program with HiGHS: the largest Σ rate·share·(ω + accuracy).
func ExactMarket(ctx context.Context, m *plan.Market) (solver.Solution, error) {
	var p solver.Problem
	kinds := make([]int, len(m.Capacity))
	for k, c := range m.Capacity {
		kinds[k] = p.AddRow(-solver.Inf, c)
	}
	for _, b := range m.Bidders {
		// A bidder's shares sum to at most one: the rest of its requests is not served.
		all := p.AddRow(-solver.Inf, 1)
		for _, o := range b.Offers {
			if o.Accuracy >= b.Floor {
				p.AddColumn(-b.Rate*(m.Value+o.Accuracy), 0, solver.Inf, false, solver.Term{Row: kinds[o.Kind], Value: b.Rate * o.Cost}, solver.Term{Row: all, Value: 1})
			}
		}
	}
	return solver.Solve(ctx, p)
}
