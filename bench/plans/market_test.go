package plans

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"downbeat.dev/bench/solver"
	"downbeat.dev/core/plan"
)

// TestPricesAreHiGHSs holds value and prices against the linear program's optimum and duals, from
// plenty to a tenth of what the lightest variants need.
func TestPricesAreHiGHSs(t *testing.T) {
	var p plan.Prices
	for _, size := range [][3]int{{400, 5, 3}, {100, 5, 3}, {9, 5, 3}, {40, 3, 1}} {
		for seed, load := range []float64{0.6, 0.03, 0.3, 0.9, 3} {
			if size[0] == 400 && seed > 0 {
				break // HiGHS takes seconds for each of these
			}
			m := MarketInstance(size[0], size[1], size[2], load, uint64(seed))
			s, err := ExactMarket(t.Context(), m)
			if errors.Is(err, solver.ErrUnavailable) {
				t.Skip(err)
			}
			if err != nil || s.Status != solver.Optimal {
				t.Fatal(s.Status, err)
			}

			if err := p.Renew(m); err != nil {
				t.Fatal(err)
			}
			if err := plan.CheckPrices(m, &p, 1e-6); err != nil {
				t.Error(err)
			}
			if math.Abs(p.Value+s.Objective) > 1e-6*p.Value {
				t.Errorf("%v at load %v: value %v, HiGHS has %v", size, load, p.Value, -s.Objective)
			}
			for k := range m.Capacity {
				if size[0] >= 100 && math.Abs(p.Price[k]+s.RowDuals[k]) > 1e-3*p.Price[k]+1e-9 { // with few families duals need not be unique
					t.Errorf("%v at load %v: kind %d costs %v, HiGHS has %v", size, load, k, p.Price[k], -s.RowDuals[k])
				}
			}
		}
	}
}

func BenchmarkPrice(b *testing.B) {
	for _, load := range []float64{0.1, 0.5, 0.9} {
		b.Run(fmt.Sprintf("families=1000/variants=5/kinds=3/load=%v", load), func(b *testing.B) {
			m := MarketInstance(1000, 5, 3, load, 1)
			var p plan.Prices
			pivots := 0
			factor := 1.0
			for b.Loop() {
				for q := range m.Bidders { // rates go up and down by 5 %, every other bidder against the rest
					if q%2 == 0 {
						m.Bidders[q].Rate *= factor
					}
				}
				factor = map[bool]float64{true: 1.05, false: 1 / 1.05}[factor < 1.01]
				if err := p.Renew(m); err != nil {
					b.Fatal(err)
				}
				pivots += p.Pivots
			}
			b.ReportMetric(float64(pivots)/float64(b.N), "pivots")
		})
	}
}
