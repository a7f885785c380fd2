package plan

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestFollowRisesAndFallsBack(t *testing.T) {
	m := &Market{Value: 3, Capacity: []float64{1}, Bidders: []Bidder{
		{Rate: 100, Offers: []Offer{{0, 0.9, 0.02}, {0, 0.5, 0.01}}}, // 40 accuracy per GPU second
		{Rate: 100, Offers: []Offer{{0, 0.9, 0.02}, {0, 0.6, 0.01}}}, // 30
	}}
	p := Prices{Price: []float64{10}, Slope: []float64{20}, Ceiling: []float64{40}}
	follow := func(from, bad float64) float64 {
		price := []float64{from}
		p.Follow(m, price, []float64{bad}, 100*time.Millisecond)
		return price[0]
	}
	for _, c := range []struct{ from, bad, want float64 }{
		{10, 0.1, 11.9},         // κ·(0.1 − 0.005)·20·0.1 s
		{12, 0, 11.809675},      // back to the plan, by exp(−0.1 s/1 s)
		{10, 0, 10},             // not below the plan
		{5, 0, 10},              // nor from below it
		{29, 0.2, 30},           // a quarter of the demand is gone at 30: no further
		{39.9, 1, 40},           // the ceiling
		{50, 0, 37.145123},      // from above it, on the way back
		{10, math.NaN(), 10},    // nobody asked
		{10, math.Inf(1), 29.9}, // all bad, and more than all is not possible
	} {
		if got := follow(c.from, c.bad); abs(got-c.want) > 1e-5 {
			t.Errorf("from %v at %v bad: %v, want %v", c.from, c.bad, got, c.want)
		}
	}
}

// TestFollowedPricesSettle runs 100,000 periods of 100 ms against rates that jump, oscillate and creep,
// on GPUs that really are up to a fifth slower than planned. While the rates hold, no bidder may keep going
// between more than two neighbouring offers of its hull.
func TestFollowedPricesSettle(t *testing.T) {
	const periods, hold = 100_000, 500
	rng := rand.New(rand.NewPCG(3, 11))
	m := drawMarket(rng, 12, 5, 1)
	rates := make([]float64, len(m.Bidders))
	full := 0.0
	for q := range m.Bidders {
		m.Bidders[q].Floor = 0
		rates[q] = m.Bidders[q].Rate
		full += rates[q] * m.Bidders[q].Offers[len(m.Bidders[q].Offers)-1].Cost
	}
	m.Capacity[0] = full * 0.7

	var p Prices
	var least, most [12]int // steps of the hull, from the lightest
	price, slower := []float64{0}, 1.0
	for period := range periods {
		at := period % hold
		if at == 0 {
			slower = 0.8 + 0.3*rng.Float64()
			for q := range m.Bidders {
				m.Bidders[q].Rate = rates[q] * math.Exp(rng.NormFloat64()/2)
			}
		}
		if period/hold%3 == 1 && at < hold/2 { // half of the holds begin with rates against the price
			for q := range m.Bidders {
				m.Bidders[q].Rate *= []float64{1.25, 0.8}[period%2]
			}
		}
		if err := p.Renew(m); err != nil {
			t.Fatal(err)
		}

		// The cluster serves what fits; the rest is bad.
		hull := [12][]int32{}
		demand := 0.0
		choice := [12]int{}
		for q := range m.Bidders {
			b := &m.Bidders[q]
			hull[q] = b.Hull(0, nil)
			j := b.Choose(price, m.Value)
			if j == NotServed {
				continue
			}
			for i, h := range hull[q] {
				if h == j {
					choice[q] = i
				}
			}
			demand += b.Rate * b.Offers[j].Cost
		}
		bad := max(0, 1-m.Capacity[0]*slower/demand)
		p.Follow(m, price, []float64{bad}, 100*time.Millisecond)

		if at <= hold*4/5 {
			least, most = choice, choice
			continue
		}
		for q := range choice {
			least[q], most[q] = min(least[q], choice[q]), max(most[q], choice[q])
			if most[q]-least[q] > 1 {
				t.Fatalf("period %d: bidder %d goes between steps %d and %d of its hull while the rates hold", period, q, least[q], most[q])
			}
		}
	}
}

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
