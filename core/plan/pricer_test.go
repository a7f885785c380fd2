package plan

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// drawBids draws services with five variants each, of which heavier ones answer better, and the GPUs that all of them
// would need with their heaviest variants.
func drawBids(rng *rand.Rand, services int) (bids []Bidder, full float64) {
	for range services {
		b := Bidder{Rate: 200 * rng.ExpFloat64()}
		cost, accuracy := 0.0005+0.002*rng.Float64(), 0.4+0.3*rng.Float64()
		for range 5 {
			b.Offers = append(b.Offers, Offer{Accuracy: accuracy, Cost: cost})
			cost *= 1.2 + 1.5*rng.Float64()
			accuracy += (0.98 - accuracy) * rng.Float64()
		}
		full += b.Rate * b.Offers[len(b.Offers)-1].Cost
		bids = append(bids, b)
	}
	return bids, full
}

// chooseOffer returns the offer that a service takes at a price, and its step on the hull, which has the offers that
// are best at some price.
func chooseOffer(b *Bidder, price float64) (offer *Offer, step int) {
	chosen := b.Choose([]float64{price}, DefaultValue)
	if chosen == NotServed {
		return nil, -1
	}
	for i, h := range b.Hull(0, nil) {
		if h == chosen {
			step = i
		}
	}
	return &b.Offers[chosen], step
}

const (
	fluidServices = 12
	fluidHold     = 500 // periods in which rates and GPUs stay the same
)

// fluid is a cluster without queues, in which every service takes at once the offer that is best at its price. Its
// GPUs are really up to a fifth slower than planned.
type fluid struct {
	rng         *rand.Rand
	drawn, bids []Bidder
	home        PricedHome
	pricer      *Pricer
	slower      float64
	steps       [fluidServices]int // the present step of each service's hull
}

func newFluid(seed uint64) *fluid {
	f := &fluid{rng: rand.New(rand.NewPCG(seed, 11)), pricer: NewPricer(func(recent, rate float64) bool { return false })}
	var full float64
	f.drawn, full = drawBids(f.rng, fluidServices)
	f.home = PricedHome{SubCluster: 1, GPUs: int(math.Ceil(full * 0.7))}
	f.bids = slices.Clone(f.drawn)
	return f
}

// run simulates a period. In a third of the holds the rates first move against the price.
func (f *fluid) run(t *testing.T, period int) {
	at, against := period%fluidHold, 1.0
	if at == 0 {
		f.slower = 0.8 + 0.3*f.rng.Float64()
		for i := range f.bids {
			f.bids[i].Rate = f.drawn[i].Rate * math.Exp(f.rng.NormFloat64()/2)
		}
	}
	if period/fluidHold%3 == 1 && at < fluidHold/2 {
		against = []float64{1.25, 0.8}[period%2]
	}

	if err := f.pricer.Begin([]PricedHome{f.home}); err != nil {
		t.Fatal(err)
	}
	for _, b := range f.bids {
		f.pricer.Add(b.Rate*against, b.Rate*against, b.Rate*against, 0)
		for _, o := range b.Offers {
			f.pricer.AddOffer(1, o.Accuracy, o.Cost)
		}
	}
	priced, err := f.pricer.Renew(100 * time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}

	// The GPUs serve what fits, and the rest is bad.
	demand := 0.0
	for i := range f.bids {
		offer, step := chooseOffer(&f.bids[i], priced[0].Price)
		if f.steps[i] = step; offer != nil {
			demand += against * f.bids[i].Rate * offer.Cost
		}
	}
	carried := float64(f.home.GPUs) * f.slower
	f.home.BadShare, f.home.BusyShare = max(0, 1-carried/demand), min(1, demand/carried)
}

// swing is the rise and fall of a service's steps since its beginning.
type swing struct {
	least, most int // so far
	rise, fall  int // the largest so far, from a step to a later one
}

func (s *swing) follow(step int) {
	s.least, s.most = min(s.least, step), max(s.most, step)
	s.rise, s.fall = max(s.rise, step-s.least), max(s.fall, s.most-step)
}

// TestPricesSettle renews prices 100,000 times, 100 ms apart, under rates that jump and oscillate. While the rates
// hold, a service may alternate between neighbouring variants. A continued move in one direction is no oscillation:
// the sold share recovers.
func TestPricesSettle(t *testing.T) {
	f, moves, far := newFluid(3), 0, 0
	var swings [fluidServices]swing
	var last [fluidServices]int
	for period := range 100_000 {
		f.run(t, period)
		if f.steps != last {
			moves++
		}
		last = f.steps

		at := period % fluidHold
		for i, step := range f.steps {
			if at <= fluidHold*4/5 {
				swings[i] = swing{least: step, most: step}
			}
			swings[i].follow(step)
			if s := &swings[i]; max(s.rise, s.fall) > 2 {
				t.Fatalf("period %d: service %d goes between steps %d and %d of its hull while the rates hold", period, i, s.least, s.most)
			} else if at == fluidHold-1 && min(s.rise, s.fall) > 1 {
				far++
				t.Logf("hold %d: service %d goes to and fro between steps %d and %d", period/fluidHold, i, s.least, s.most)
			}
		}
	}
	if far > 0 {
		t.Errorf("%d of %d times that rates held for a service it went to and fro over more than one step of its hull, want none", far, 100_000/fluidHold*fluidServices)
	}
	if moves < 1000 {
		t.Errorf("choices changed %d times: the rates asked for nothing", moves)
	}
}

// TestAKindThatDisappears shows that offers of a kind without GPUs sell nothing, so the other kind's price rises to
// what its own bidders pay. Prices are the same again when the kind returns, and without any kind nothing has a
// price.
func TestAKindThatDisappears(t *testing.T) {
	p := NewPricer(func(_, _ float64) bool { return false })
	both := []PricedHome{{SubCluster: 3, GPUs: 4}, {SubCluster: 7, GPUs: 4}}
	renew := func(homes ...PricedHome) (prices []float64) {
		if err := p.Begin(homes); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			p.Add(50, 50, 50, 0)
			for _, o := range []Offer{{Kind: 3, Accuracy: 0.8, Cost: 0.002}, {Kind: 3, Accuracy: 0.95, Cost: 0.006}, {Kind: 7, Accuracy: 0.8, Cost: 0.003}, {Kind: 7, Accuracy: 0.95, Cost: 0.009}} {
				p.AddOffer(uint32(o.Kind), o.Accuracy, o.Cost)
			}
		}
		priced, err := p.Renew(20 * time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range priced {
			prices = append(prices, h.Planned)
		}
		return prices
	}

	before := renew(both...)
	alone := renew(both[1])
	if len(alone) != 1 || alone[0] < 2*before[1] {
		t.Errorf("planned prices %v of two kinds, %v of the one that is left; want at least twice as much", before, alone)
	}
	if none := renew(); len(none) != 0 {
		t.Errorf("without GPUs prices are %v, want none", none)
	}
	if again := renew(both...); !slices.Equal(again, before) {
		t.Errorf("planned prices %v, want %v as before the kind disappeared", again, before)
	}
}

// TestOneBadSecondIsForgotten shows that ten seconds after a second in which half of the requests went bad, nine
// tenths of the GPU time are for sale again. A share at which requests always go bad is not tried again and again.
func TestOneBadSecondIsForgotten(t *testing.T) {
	const period = 100 * time.Millisecond
	sold := func(seconds int, badAt func(full float64) float64, p *Pricer) (bad float64) {
		for range time.Duration(seconds) * time.Second / period {
			share := badAt(p.sold)
			if err := p.Begin([]PricedHome{{GPUs: 8, BadShare: share}}); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Renew(period); err != nil {
				t.Fatal(err)
			}
			bad += share
		}
		return bad / float64(seconds) / float64(time.Second/period)
	}

	p := NewPricer(func(_, _ float64) bool { return false })
	sold(1, func(float64) float64 { return 0.5 }, p)
	if p.sold > 0.5 {
		t.Fatalf("a bad second leaves %.2f of the time for sale, want 0.5", p.sold)
	}
	sold(10, func(float64) float64 { return 0 }, p)
	if p.sold < 0.9 {
		t.Errorf("ten good seconds later %.2f of the time is for sale, want 0.9", p.sold)
	}

	// Beyond 0.8 some requests go bad at once. The mean stays at what a slow rise allows.
	tight := func(full float64) float64 {
		if full > 0.8 {
			return 0.02
		}
		return 0
	}
	sold(60, tight, p)
	if bad := sold(100, tight, p); bad > 2*badLeast {
		t.Errorf("%.4f of the requests go bad in the long run, want %v", bad, 2*badLeast)
	}
}

// TestIdleSecondsDiscountNothing shows that a burst after idle seconds finds the price that the plan has for it.
func TestIdleSecondsDiscountNothing(t *testing.T) {
	p := NewPricer(func(_, _ float64) bool { return false })
	renew := func(rate, busy float64) PricedHome {
		if err := p.Begin([]PricedHome{{GPUs: 8, BusyShare: busy}}); err != nil {
			t.Fatal(err)
		}
		p.Add(rate, rate, rate, 0)
		p.AddOffer(0, 0.9, 0.05)
		p.AddOffer(0, 0.7, 0.02)
		homes, err := p.Renew(20 * time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		return homes[0]
	}

	for range 500 {
		if h := renew(10, 0.06); h.Price != LeastPrice {
			t.Fatalf("idle GPUs: %+v, want no price", h)
		}
	}
	if h := renew(200, 0.06); h.Planned <= LeastPrice || h.Price < 0.9*h.Planned {
		t.Errorf("the first renewal of a burst: %+v, want the planned price", h)
	}
}

// TestHalfOfTheTimeAheadIsSold shows that half of the GPU time granted ahead remains for sale: batches of the second before
// ended late too.
func TestHalfOfTheTimeAheadIsSold(t *testing.T) {
	capacity := func(ahead float64) float64 {
		p := NewPricer(func(_, _ float64) bool { return false })
		if err := p.Begin([]PricedHome{{GPUs: 8, Committed: ahead}}); err != nil {
			t.Fatal(err)
		}
		return p.market.Capacity[0]
	}
	if all, got := capacity(0), capacity(2); math.Abs(got-all*(8-1)/8) > 1e-9 {
		t.Errorf("of %v GPUs %v are for sale while 2 are granted, want 1 in 8 less", all, got)
	}
}

// TestLearnersBuyTime shows that time that learners buy is not sold to requests, so it raises the price, and that it
// does not lower a price by being idle for requests.
func TestLearnersBuyTime(t *testing.T) {
	renew := func(learning float64) PricedHome {
		p := NewPricer(func(_, _ float64) bool { return false })
		var homes []PricedHome
		for range 50 {
			if err := p.Begin([]PricedHome{{GPUs: 8, BusyShare: 0.6, Learning: learning}}); err != nil {
				t.Fatal(err)
			}
			p.Add(100, 100, 100, 0)
			p.AddOffer(0, 0.9, 0.05) // 5 of the GPUs
			p.AddOffer(0, 0.7, 0.02)
			var err error
			if homes, err = p.Renew(100 * time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
		return homes[0]
	}

	if h := renew(0); h.Planned > LeastPrice {
		t.Errorf("GPUs suffice for the best offers: %+v, want no price", h)
	}
	bought := renew(0.4)
	if want := 0.2 / 0.03; math.Abs(bought.Planned-want) > 1e-6 {
		t.Errorf("learners buy 0.4: %+v, want the price at which both offers are as good, %.3f", bought, want)
	}
	if bought.Price != bought.Planned {
		t.Errorf("%+v: time that learners have bought lowers the price", bought)
	}
}

// TestLearnersGiveWay shows that, however much learners want, the time that all requests need at their floors is not
// sold to them. They get all that they want while the price is below half of the price at which the first request
// would go unserved, and at that price what is left.
func TestLearnersGiveWay(t *testing.T) {
	const gpus = 8
	rng := rand.New(rand.NewPCG(323, 1))
	var all, some, none int
	for range 300 {
		bids, _ := drawBids(rng, 6)
		least := 0.0
		for i := range bids {
			least += bids[i].Rate * bids[i].Offers[0].Cost
		}

		// The time of the lightest offers: from a third of the sold time to half more than all of it.
		p := NewPricer(func(_, _ float64) bool { return false })
		sold := gpus * p.shareOf(gpus)
		needed := sold * (1.0/3 + rng.Float64()*7/6)
		wanted := LearnShareMost * rng.Float64()
		if err := p.Begin([]PricedHome{{GPUs: gpus, Learning: wanted}}); err != nil {
			t.Fatal(err)
		}
		for i := range bids {
			b := &bids[i]
			p.Add(b.Rate*needed/least, b.Rate*needed/least, b.Rate*needed/least, 0)
			for j := range b.Offers {
				p.AddOffer(0, b.Offers[j].Accuracy, b.Offers[j].Cost)
			}
		}
		homes, err := p.Renew(100 * time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}

		bought, price, gives := homes[0].Learning, p.prices.Price[0], p.leastWorth(0)/2
		if left := max(0, sold-needed) / gpus; bought > min(wanted, left)+1e-9 {
			t.Errorf("the floors leave %.3f of the GPUs, learners want %.3f and get %.3f", left, wanted, bought)
		}
		if bought < wanted && price < gives*(1-1e-9) || bought > 0 && price > gives*(1+1e-9) {
			t.Errorf("learners want %.3f of the GPUs and get %.3f at a price of %.2f, want all below %.2f and nothing above", wanted, bought, price, gives)
		}
		switch bought {
		case wanted:
			all++
		case 0:
			none++
		default:
			some++
		}
	}
	if min(all, some, none) < 20 {
		t.Errorf("all of it %d times, some %d times, none %d times: too few to tell", all, some, none)
	}
}
