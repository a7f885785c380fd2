package plan

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// drawMarket draws bidders whose offers cost more the better they are, with some dominated ones, and kinds with a
// capacity between nothing and more than the whole demand.
func drawMarket(rng *rand.Rand, bidders, variants, kinds int) *Market {
	m := &Market{Value: DefaultValue}
	speed := make([]float64, kinds)
	for k := range speed {
		speed[k] = 1 + 4*rng.Float64()
	}
	full := 0.0
	for range bidders {
		b := Bidder{Rate: 200 * rng.ExpFloat64()}
		cost, accuracy := 0.0005+0.002*rng.Float64(), 0.4+0.3*rng.Float64()
		for range variants {
			for k := range kinds {
				b.Offers = append(b.Offers, Offer{int32(k), min(1, accuracy), cost / speed[k] * (0.8 + 0.4*rng.Float64())})
			}
			cost *= 1.2 + 1.5*rng.Float64()
			accuracy += (0.98 - accuracy) * rng.Float64()
		}
		if rng.IntN(4) == 0 {
			b.Floor = b.Offers[len(b.Offers)-1].Accuracy * rng.Float64()
		}
		full += b.Rate * cost / speed[0]
		m.Bidders = append(m.Bidders, b)
	}
	for range kinds {
		m.Capacity = append(m.Capacity, full/float64(kinds)*rng.Float64()*rng.Float64()*rng.Float64())
	}
	return m
}

func TestPricesProveThemselves(t *testing.T) {
	var p Prices
	for seed := range uint64(1500) {
		rng := rand.New(rand.NewPCG(seed, 8))
		m := drawMarket(rng, rng.IntN(60), 1+rng.IntN(5), 1+rng.IntN(4))
		if rng.IntN(5) == 0 {
			m.Capacity[rng.IntN(len(m.Capacity))] = 0
		}
		if err := p.Renew(m); err != nil {
			t.Fatal(err)
		}
		if err := CheckPrices(m, &p, 1e-6); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if p.Bound < p.Value*(1-1e-9) || p.Bound > p.Value*(1+1e-6)+1e-9 {
			t.Fatalf("seed %d: value %v, bound %v", seed, p.Value, p.Bound)
		}
	}
}

// TestPriceOfOneFamily goes through the cases by hand: all at their best, split, all at the lightest, drops.
func TestPriceOfOneFamily(t *testing.T) {
	offers := []Offer{{0, 0.9, 0.010}, {0, 0.7, 0.002}, {0, 0.71, 0.009}}
	for _, c := range []struct {
		gpus, price, accuracy, served float64
	}{
		{20, 0, 0.9, 1000},
		{6, 0.2 / 0.008, 0.8, 1000}, // half at 10 ms, half at 2 ms
		{1, 3.7 / 0.002, 0.7, 500},  // 500 of 1,000 fit, so the price is that of an answer
		{0, 3.7 / 0.002, 0, 0},      // a kind without GPUs has a price that nobody pays
	} {
		m := &Market{Bidders: []Bidder{{Rate: 1000, Offers: offers}}, Capacity: []float64{c.gpus}, Value: 3}
		var p Prices
		if err := p.Renew(m); err != nil {
			t.Fatal(err)
		}
		if err := CheckPrices(m, &p, 1e-9); err != nil {
			t.Errorf("%v GPUs: %v", c.gpus, err)
		}
		if abs(p.Price[0]-c.price) > 1e-6*c.price || abs(p.Accuracy-c.accuracy) > 1e-9 || abs(p.Served-c.served) > 1e-6 {
			t.Errorf("%v GPUs: price %v, accuracy %v, served %v; want %v, %v, %v", c.gpus, p.Price[0], p.Accuracy, p.Served, c.price, c.accuracy, c.served)
		}
	}
}

func TestFloorsHoldAndExcludeCheaperOffers(t *testing.T) {
	m := &Market{Value: 3, Capacity: []float64{3}, Bidders: []Bidder{
		{Rate: 100, Floor: 0.8, Offers: []Offer{{0, 0.9, 0.01}, {0, 0.5, 0.001}}},
		{Rate: 1000, Offers: []Offer{{0, 0.9, 0.01}, {0, 0.5, 0.001}}},
	}}
	var p Prices
	if err := p.Renew(m); err != nil {
		t.Fatal(err)
	}
	if err := CheckPrices(m, &p, 1e-9); err != nil || p.Main[0] != 0 || p.Served != 1100 {
		t.Errorf("bidder 0 has offer %d, %v served, %v", p.Main[0], p.Served, err)
	}
	m.Bidders[0].Floor = 0.95
	var infeasible *InfeasibleError
	if err := p.Renew(m); !errors.As(err, &infeasible) || infeasible.Needed != 0.95 || infeasible.Allowed != 0.9 {
		t.Errorf("%v, want that 0.9 is the best there is", err)
	}
}

func TestWhoAsksNothingStillHasAChoice(t *testing.T) {
	m := &Market{Value: 3, Capacity: []float64{1, 0}, Bidders: []Bidder{
		{Rate: 100, Offers: []Offer{{0, 0.9, 0.02}, {0, 0.5, 0.005}}},
		{Rate: 0, Offers: []Offer{{1, 0.95, 0.001}, {0, 0.9, 0.02}, {0, 0.8, 0.001}}},
		{Rate: 0, Offers: []Offer{{1, 0.95, 0.001}}},
	}}
	var p Prices
	if err := p.Renew(m); err != nil {
		t.Fatal(err)
	}
	if err := CheckPrices(m, &p, 1e-9); err != nil {
		t.Error(err)
	}
	if p.Main[1] != 2 || p.Main[2] != NotServed {
		t.Errorf("choices %v at prices %v; want the light offer on the kind that is there, and none", p.Main, p.Price)
	}
}

func TestRenewRefuses(t *testing.T) {
	for want, spoil := range map[string]func(*Market){
		"number of kinds is 0":          func(m *Market) { m.Capacity = nil },
		"number of kinds is 9":          func(m *Market) { m.Capacity = make([]float64, 9) },
		"kind 0: capacity is NaN":       func(m *Market) { m.Capacity[0] = math.NaN() },
		"value of an answer is -1":      func(m *Market) { m.Value = -1 },
		"bidder 1: rate is +Inf":        func(m *Market) { m.Bidders[1].Rate = math.Inf(1) },
		"bidder 1: floor is NaN":        func(m *Market) { m.Bidders[1].Floor = math.NaN() },
		"offer 0: kind is 1":            func(m *Market) { m.Bidders[0].Offers[0].Kind = 1 },
		"offer 0: accuracy is 1.5":      func(m *Market) { m.Bidders[0].Offers[0].Accuracy = 1.5 },
		"bidder 0: offer 0: cost is 0,": func(m *Market) { m.Bidders[0].Offers[0].Cost = 0 },
		"floor of bidder 1":             func(m *Market) { m.Bidders[1].Offers, m.Bidders[1].Floor = nil, 0.5 },
	} {
		m := &Market{Value: 3, Capacity: []float64{1}, Bidders: []Bidder{{1, 0, []Offer{{0, 0.5, 0.1}}}, {1, 0, []Offer{{0, 0.5, 0.1}}}}}
		var p Prices
		if err := p.Renew(m); err != nil {
			t.Fatal(err)
		}
		spoil(m)
		if err := p.Renew(m); err == nil || !strings.Contains(err.Error(), want) || len(p.Main) != 2 {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
}

func TestRenewAllocatesNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 9))
	m := drawMarket(rng, 200, 5, 3)
	var p Prices
	renew := func() {
		for q := range m.Bidders {
			m.Bidders[q].Rate *= 0.9 + 0.2*rng.Float64()
		}
		if err := p.Renew(m); err != nil {
			t.Fatal(err)
		}
	}
	renew()
	if n := testing.AllocsPerRun(100, renew); n != 0 {
		t.Errorf("%v allocations a renewal, want none", n)
	}
}

// marketChanges are changes between two renewals, the smallest first: rates drift, are drawn again, triple and fall
// back, GPUs come and go.
var marketChanges = []struct {
	name  string
	apply func(rng *rand.Rand, m *Market, full []float64, round int)
}{
	{"drift", func(rng *rand.Rand, m *Market, _ []float64, _ int) {
		for q := range m.Bidders {
			m.Bidders[q].Rate *= 0.95 + 0.1*rng.Float64()
		}
	}},
	{"redraw", func(rng *rand.Rand, m *Market, _ []float64, _ int) {
		for q := range m.Bidders {
			m.Bidders[q].Rate = 200 * rng.ExpFloat64()
		}
	}},
	{"triple", func(_ *rand.Rand, m *Market, _ []float64, round int) {
		for q := range m.Bidders {
			m.Bidders[q].Rate *= []float64{3, 1. / 3}[round%2]
		}
	}},
	{"gpus", func(rng *rand.Rand, m *Market, full []float64, _ int) {
		for k := range m.Capacity {
			m.Capacity[k] = full[k] * (0.5 + rng.Float64())
		}
	}},
}

// TestRenewalsStartNearTheOptimum shows that after any change since the last renewal, and from nothing, the search
// for the prices of 1,000 bidders takes few pivots, and that its result proves itself.
func TestRenewalsStartNearTheOptimum(t *testing.T) {
	for seed := range uint64(3) {
		rng := rand.New(rand.NewPCG(seed, 9))
		m := drawMarket(rng, 1000, 5, 3)
		full := slices.Clone(m.Capacity)
		for _, c := range marketChanges {
			var p Prices
			for round := range 20 {
				if err := p.Renew(m); err != nil {
					t.Fatal(err)
				}
				if err := CheckPrices(m, &p, 1e-6); err != nil || p.Pivots > 4000 {
					t.Errorf("seed %d, %s, round %d: %d pivots, %v; want 4,000 at most", seed, c.name, round, p.Pivots, err)
				}
				c.apply(rng, m, full, round)
			}
		}
	}
}

func FuzzRenew(f *testing.F) {
	f.Add(uint64(1), 0.5, 0.001, 10.0, 1.0)
	f.Add(uint64(2), 1.0, 1e-300, 1e300, 0.0)
	f.Add(uint64(3), math.NaN(), math.Inf(1), -1.0, 1e-9)
	f.Fuzz(func(t *testing.T, seed uint64, accuracy, cost, rate, capacity float64) {
		m := drawMarket(rand.New(rand.NewPCG(seed, 10)), 5, 3, 2)
		m.Bidders[0].Offers[0] = Offer{0, accuracy, cost}
		m.Bidders[1].Rate, m.Capacity[1] = rate, capacity
		var p Prices
		if err := p.Renew(m); err != nil {
			return
		}
		if rate > 1e12 || cost < 1e-12 || cost > 1e12 || capacity > 1e12 || rate > 0 && rate < 1e-9 || capacity > 0 && capacity < 1e-9 {
			return // beyond the precision of 64-bit numbers; it must only return
		}
		if err := CheckPrices(m, &p, 1e-3); err != nil {
			t.Fatal(err)
		}
	})
}

// TestTheLastTwoChoicesAreOnlyAShortCut shows that the two best items are the same whether those of the last search are
// tried first or all are searched, with ties and while prices move.
func TestTheLastTwoChoicesAreOnlyAShortCut(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	m := drawMarket(rng, 200, 5, 3)
	for q := range m.Bidders {
		if o := m.Bidders[q].Offers; q%3 == 0 && len(o) > 2 {
			o[len(o)-1] = o[0] // a tie at all prices
		}
	}
	var short, long simplex
	short.readMarket(m)
	long.readMarket(m)
	for range 300 {
		for k := range m.Capacity {
			short.price[k] = max(0, short.price[k]+(rng.Float64()-0.45)*10)
		}
		long.price = short.price
		for q := range m.Bidders {
			items := long.items[long.first[q]:long.first[q+1]]
			a, b, gap := short.bestTwoOf(q)
			c, d, same := long.findTwo(q, items)
			if *a != *c || *b != *d || gap != same || short.last[q] != long.last[q] || short.second[q] != long.second[q] {
				t.Fatalf("bidder %d: %+v and %+v, %v apart; want %+v and %+v, %v", q, *a, *b, gap, *c, *d, same)
			}
		}
	}
}
