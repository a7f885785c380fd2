package plan

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

func drawResidency(rng *rand.Rand, bidders, variants int) ResidencyProblem {
	r := ResidencyProblem{Market: *drawMarket(rng, bidders, variants, 1)}
	var all int64
	for q, b := range r.Market.Bidders {
		r.Variant = append(r.Variant, nil)
		for range b.Offers {
			r.Variant[q] = append(r.Variant[q], int32(len(r.Variants)))
			m := VariantMemory{Static: 100 + rng.Int64N(2000), Dynamic: rng.Int64N(1000)}
			all += m.Static
			r.Variants = append(r.Variants, m)
		}
	}
	r.Memory = 1 + int64(float64(all)*(0.3+0.9*rng.Float64())) + rng.Int64N(1000)
	return r
}

// TestResidencyIsNearTheBestSet tries all sets of up to 12 variants.
func TestResidencyIsNearTheBestSet(t *testing.T) {
	feasible := 0
	for seed := range uint64(40) {
		r := drawResidency(rand.New(rand.NewPCG(seed, 30)), 2+int(seed%3), 3)
		a, err := KeepVariants(r)
		var infeasible *InfeasibleError
		if errors.As(err, &infeasible) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		feasible++
		if err := CheckResidency(&r, a); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}

		s := &residencySearch{r: &r, keep: make([]bool, len(r.Variants)), must: make([]bool, len(r.Variants))}
		if err := s.requireLightest(); err != nil {
			t.Fatal(err)
		}
		best := 0.0
		for set := range 1 << len(s.keep) {
			allowed := true
			for v := range s.keep {
				s.keep[v] = set>>v&1 == 1
				allowed = allowed && (s.keep[v] || !s.must[v])
			}
			if allowed && s.memory(s.keep) <= r.Memory {
				value, err := s.value()
				if err != nil {
					t.Fatal(err)
				}
				best = max(best, value)
			}
		}
		if a.Value < best*0.999 {
			t.Errorf("seed %d: a value of %v, the best set has %v", seed, a.Value, best)
		}
	}
	if feasible < 20 {
		t.Errorf("%d of 40 fit: the test tries too little", feasible)
	}
}

func TestResidencyOfManyFamilies(t *testing.T) {
	r := drawResidency(rand.New(rand.NewPCG(1, 31)), 100, 4)
	a, err := KeepVariants(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckResidency(&r, a); err != nil {
		t.Error(err)
	}
	if a.Value < 0.9*a.Most {
		t.Errorf("%v of %v kept", a.Value, a.Most)
	}
}

func TestResidencyRefuses(t *testing.T) {
	for want, spoil := range map[string]func(*ResidencyProblem){
		"memory of a GPU is 0":                func(r *ResidencyProblem) { r.Memory = 0 },
		"variant 1: memory is -1":             func(r *ResidencyProblem) { r.Variants[1].Static = -1 },
		"bidder 0: offer 1: variant is 9":     func(r *ResidencyProblem) { r.Variant[0][1] = 9 },
		"bidder 0: number of variants is 1":   func(r *ResidencyProblem) { r.Variant[0] = r.Variant[0][:1] },
		"kinds in a sub-cluster is 2":         func(r *ResidencyProblem) { r.Market.Capacity = []float64{1, 1} },
		"lightest variant of everybody: 15 b": func(r *ResidencyProblem) { r.Memory = 14 },
	} {
		r := ResidencyProblem{Memory: 100, Variants: []VariantMemory{{Static: 10, Dynamic: 5}, {Static: 20, Dynamic: 5}}, Variant: [][]int32{{0, 1}},
			Market: Market{Value: 3, Capacity: []float64{1}, Bidders: []Bidder{{1, 0, []Offer{{0, 0.5, 0.1}, {0, 0.9, 0.2}}}}}}
		if _, err := KeepVariants(r); err != nil {
			t.Fatal(err)
		}
		spoil(&r)
		if _, err := KeepVariants(r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
}
