package plan

import "fmt"

// DefaultValue is ω: an answer is worth three times its accuracy, so that serving more comes before serving better
// (UNIFIED U4).
const DefaultValue = 3

// KindsMax is the largest number of kinds of GPUs in one market: a power of 2.
const KindsMax = 8

// Offer is one way to answer a bidder's requests: a variant on a kind of GPU.
type Offer struct {
	Kind     int32
	Accuracy float64 // 0…1
	Cost     float64 // GPU seconds per request at the target batch (Cost)
}

// Bidder is a family, or the class of a family whose requests share a floor. A bidder with a rate of 0 demands
// nothing but still has a choice: the offer that the next request would get.
type Bidder struct {
	Rate   float64 // requests/s
	Floor  float64 // the least accuracy of an answer
	Offers []Offer // in any order
}

// Market is the demand for GPU time and the capacity.
type Market struct {
	Bidders  []Bidder
	Capacity []float64 // by kind: u*·N GPUs; 0 for a kind without GPUs
	Value    float64   // ω
}

func (m *Market) validate() error {
	if len(m.Capacity) < 1 || len(m.Capacity) > KindsMax {
		return refuse("number of kinds", len(m.Capacity), fmt.Sprintf("1 to %d", KindsMax))
	}

	if !finite(m.Value) {
		return refuse("value of an answer", m.Value, "a finite number, 0 or more")
	}
	for k, c := range m.Capacity {
		if !finite(c) {
			return refuse(fmt.Sprintf("kind %d: capacity", k), c, "a finite number of GPUs, 0 or more")
		}
	}

	// Check every number of every bidder: one NaN would make all prices NaN.
	for q := range m.Bidders {
		b := &m.Bidders[q]
		if !finite(b.Rate) {
			return refuse(fmt.Sprintf("bidder %d: rate", q), b.Rate, "a finite number of requests/s, 0 or more")
		}
		if !(b.Floor >= 0 && b.Floor <= 1) {
			return refuse(fmt.Sprintf("bidder %d: floor", q), b.Floor, "0 to 1")
		}

		best := -1.0
		for j := range b.Offers {
			o := &b.Offers[j]
			switch {
			case o.Kind < 0 || int(o.Kind) >= len(m.Capacity):
				return refuse(fmt.Sprintf("bidder %d: offer %d: kind", q, j), o.Kind, fmt.Sprintf("0 to %d", len(m.Capacity)-1))
			case !(o.Accuracy >= 0 && o.Accuracy <= 1):
				return refuse(fmt.Sprintf("bidder %d: offer %d: accuracy", q, j), o.Accuracy, "0 to 1")
			case !finite(o.Cost) || o.Cost == 0:
				return refuse(fmt.Sprintf("bidder %d: offer %d: cost", q, j), o.Cost, "a finite number of seconds, more than 0")
			}
			best = max(best, o.Accuracy)
		}

		if best < b.Floor {
			return &InfeasibleError{fmt.Sprintf("accuracy floor of bidder %d, above its best offer,", q), b.Floor, max(0, best), "(accuracy)"}
		}
	}
	return nil
}

// NotServed is the choice of a bidder whose requests, or a share of them, are not worth their price.
const NotServed = -1

// Split is a share of a bidder's requests that gets another offer than its main one.
type Split struct {
	Bidder, Offer int32 // Offer may be NotServed
	Share         float64
}

// Prices is the result of a market. It also keeps its working memory, so repeated renewals allocate nothing. The zero
// value is ready for use.
type Prices struct {
	Price  []float64 // by kind: the value of a GPU second; 0 if GPUs are left over, and more than anybody pays if there are none
	Main   []int32   // by bidder: the offer of most of its requests, or NotServed
	Splits []Split   // at most one for each kind
	Demand []float64 // by kind, in GPUs
	Served float64   // requests/s that have an offer
	// Accuracy is the mean over served requests.
	Accuracy float64
	// Value is Σ rate·(ω + accuracy) per second. No choice exceeds Bound.
	Value, Bound float64
	Pivots       int

	x simplex
}
