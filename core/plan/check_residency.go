package plan

import "fmt"

// CheckResidency reports memory that does not suffice, bidders that nothing kept can answer, and a value
// beyond that of all variants.
func CheckResidency(r *ResidencyProblem, a Residency) error {
	// The memory is summed up anew: a checker must not trust the search's own sum.
	var largest int64
	var kept []int
	for v := len(a.Keep) - 1; v >= 0; v-- {
		if a.Keep[v] {
			kept = append(kept, v)
			if r.Variants[v].Dynamic > largest {
				largest = r.Variants[v].Dynamic
			}
		}
	}

	need := heldBytes(kept, func(v int) int64 { return r.Variants[v].Static }, func(v int) int64 { return r.Variants[v].Shared }, func(v int) int32 { return r.Variants[v].Trunk })
	if need+largest > r.Memory {
		return fmt.Errorf("%d bytes on GPUs of %d", need+largest, r.Memory)
	}

	for q, b := range r.Market.Bidders {
		answered := false
		for j := range b.Offers {
			answered = answered || a.Keep[r.Variant[q][j]] && b.Offers[j].Accuracy >= b.Floor
		}
		if !answered {
			return fmt.Errorf("bidder %d has nothing at or above its floor of %v", q, b.Floor)
		}
	}

	if a.Value > a.Most*(1+1e-9) {
		return fmt.Errorf("a value of %v with some variants, %v with all", a.Value, a.Most)
	}
	return nil
}
