package plan

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestHullIsWhatPricesChoose(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 12))
		var b Bidder
		for range 1 + rng.IntN(7) {
			b.Offers = append(b.Offers, Offer{int32(rng.IntN(2)), float64(rng.IntN(20)) / 20, float64(1+rng.IntN(12)) / 1000})
		}
		b.Floor = float64(rng.IntN(10)) / 20
		for kind := range int32(2) {
			hull := b.Hull(kind, nil)
			on := make([]bool, len(b.Offers))
			for i, j := range hull {
				on[j] = true
				if o := b.Offers[j]; o.Kind != kind || o.Accuracy < b.Floor {
					t.Fatalf("seed %d: %+v is on the hull of kind %d, floor %v", seed, o, kind, b.Floor)
				}
				if i == 0 {
					continue
				}
				from, to := b.Offers[hull[i-1]], b.Offers[j]
				if to.Accuracy <= from.Accuracy || to.Cost < from.Cost {
					t.Fatalf("seed %d: the hull goes from %+v to %+v", seed, from, to)
				}
			}

			// At every price the best offer is as good as one on the hull.
			for price := 0.0; price < 3000; price = price*1.3 + 1 {
				best, onHull := math.Inf(-1), math.Inf(-1)
				for j, o := range b.Offers {
					if o.Kind != kind || o.Accuracy < b.Floor {
						continue
					}
					best = max(best, o.Accuracy-price*o.Cost)
					if on[j] {
						onHull = max(onHull, o.Accuracy-price*o.Cost)
					}
				}
				if best > onHull+1e-12 {
					t.Fatalf("seed %d: at a price of %v an offer off the hull gains %v, on it %v", seed, price, best, onHull)
				}
			}
		}
	}
}

func TestSignalsBracketTheDemand(t *testing.T) {
	var s Signals
	var p Prices
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 13))
		m := drawMarket(rng, 30, 4, 1)
		if err := p.Renew(m); err != nil {
			t.Fatal(err)
		}
		if err := s.Measure(m, make([]float64, 1)); err != nil {
			t.Fatal(err)
		}
		if abs(s.Now[0]-s.Full[0]) > 1e-9*s.Full[0] {
			t.Errorf("seed %d: at no price %v GPUs are asked for, of %v", seed, s.Now[0], s.Full[0])
		}
		if s.Floor[0] > s.Full[0]*(1+1e-9) {
			t.Errorf("seed %d: %v GPUs at the floors, %v at full accuracy", seed, s.Floor[0], s.Full[0])
		}
		step, _, missing := Relieve(s.Full[0], s.Floor[0], 0, m.Capacity[0])
		switch {
		case (p.Price[0] == 0) != (step == NoRelief):
			t.Errorf("seed %d: price %v, and %v", seed, p.Price[0], step)
		case (p.Served < totalRate(m)*(1-1e-9)) != (step == DropRequests):
			t.Errorf("seed %d: %v of %v served, and %v", seed, p.Served, totalRate(m), step)
		case abs(missing-max(0, s.Full[0]-m.Capacity[0])) > 1e-9:
			t.Errorf("seed %d: %v GPUs missing", seed, missing)
		}
	}
}

func totalRate(m *Market) (sum float64) {
	for _, b := range m.Bidders {
		sum += b.Rate
	}
	return sum
}

func TestRelieveGoesInOrder(t *testing.T) {
	for _, c := range []struct {
		full, floor, skippable, capacity float64
		step                             Relief
		skip                             float64
	}{
		{5, 3, 1, 10, NoRelief, 0},
		{10, 3, 1, 10, StopSpareWork, 0},
		{15, 3, 1, 10, LowerAccuracy, 0},
		{15, 10, 1, 10, LowerAccuracy, 0},
		{20, 11, 2, 10, SkipFrames, 0.5},
		{20, 12, 2, 10, RefuseSessions, 1},
		{20, 13, 2, 10, DropRequests, 1},
		{20, 13, 0, 10, DropRequests, 0},
		{20, 13, 0, 0, DropRequests, 0},
	} {
		step, skip, missing := Relieve(c.full, c.floor, c.skippable, c.capacity)
		if step != c.step || abs(skip-c.skip) > 1e-12 || missing != max(0, c.full-c.capacity) {
			t.Errorf("%+v: %v, skip %v, %v missing", c, step, skip, missing)
		}
	}
}
