package engine

import (
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
	"downbeat.dev/internal/logtest"
)

// accuracyOf returns the mean accuracy of the answers to requests from first to last, and the number of requests
// without an answer.
func (s *stage) accuracyOf(f *front, b *emulated, first, last uint64) (mean float64, lost int) {
	accuracy := map[uint32]float64{}
	for _, m := range f.models {
		accuracy[m.ID+1] = m.Accuracy
	}
	for id := first; id <= last; id++ {
		if len(s.ends[id]) == 1 && s.ends[id][0] == "output" {
			mean += accuracy[b.answers[id]]
		} else {
			lost++
		}
	}
	return mean / float64(max(1, last+1-first-uint64(lost))), lost
}

// TestAccuracyFallsBeforeRequestsAreDropped shows that a load of up to four times the best variant's lowers accuracy
// step by step and drops nothing, and that accuracy returns when the load is gone.
func TestAccuracyFallsBeforeRequestsAreDropped(t *testing.T) {
	s := newStage(t, Options{})
	b := s.mustBackend(familyHello("b", 1))
	b.tables = true
	f := s.frontend()

	last := uint64(0)
	for _, x := range []struct {
		every, span sched.Time
		least, most float64 // accuracy in the last two seconds
	}{
		{5 * ms, 2000 * ms, 0.949, 0.95},
		{ms, 4000 * ms, 0.899, 0.92},
		{ms * 2 / 5, 4000 * ms, 0.799, 0.82},
		{5 * ms, 8000 * ms, 0.949, 0.95},
	} {
		first := last
		middle := s.steadily(f, "v", first, x.every, x.span-2000*ms)
		last = s.steadily(f, "v", middle, x.every, 2000*ms)
		s.run(s.clock.now + 60*ms)
		_, before := s.accuracyOf(f, b, first+1, middle)
		mean, lost := s.accuracyOf(f, b, middle+1, last)
		if mean < x.least || mean > x.most || before+lost > 0 {
			t.Errorf("a request every %v: accuracy %.3f, want %v to %v; %d were not answered", time.Duration(x.every), mean, x.least, x.most, before+lost)
		}
	}
}

// TestPricesFollowDemand shows that each of two kinds of GPUs has a price, higher for the faster one; that models
// without a choice take their part of the time first; and that time which is left over costs next to nothing.
func TestPricesFollowDemand(t *testing.T) {
	s := newStage(t, Options{Partitions: 2})
	fast := familyHello("fast", 1)
	fast.Models = append(fast.Models, wire.BackendModel{Info: model.Info{Name: "plain", Version: "1", SLO: 50e6}, Profile: slope})
	slow := familyHello("slow", 1)
	for i := range slow.Models {
		slow.Models[i].Profile = scaled(2 * []float64{0.25, 0.5, 1}[i])
	}
	for _, h := range []wire.BackendHello{fast, slow} {
		s.mustBackend(h).tables = true
	}
	f := s.frontend()
	price := func(span, every, plain sched.Time) (fast, slow float64) {
		id := uint64(s.clock.now) * 2
		for n := sched.Time(1); n*every <= span; n++ {
			f.ask(id, "v", 50*ms)
			if plain > 0 && n%plain == 0 {
				f.ask(id+1, "plain", 50*ms)
			}
			id += 2
			s.run(s.clock.now + every)
		}
		homes := s.e.reg.pricing.homes
		return homes[0].Price, homes[1].Price
	}

	if a, b := price(1000*ms, 20*ms, 0); a != plan.LeastPrice || b != plan.LeastPrice {
		t.Errorf("with time left over prices are %v and %v, want %v", a, b, plan.LeastPrice)
	}
	a, b := price(6000*ms, ms, 0)
	if !(a > b && b > plan.LeastPrice) {
		t.Errorf("under load prices are %v and %v, want the faster kind's to be higher", a, b)
	}
	beside, _ := price(6000*ms, ms, 2)
	if beside <= a {
		t.Errorf("beside another model the price is %v, want more than %v", beside, a)
	}
}

// TestNobodyPaysForPricesWithoutAChoice shows that nothing is renewed before there is a service with a choice, and
// after the last one has gone.
func TestNobodyPaysForPricesWithoutAChoice(t *testing.T) {
	s := newStage(t, Options{Partitions: 2})
	s.mustBackend(hello("plain", 1, slope, "a", "b"))
	s.run(s.clock.now + 1000*ms)
	if x := &s.e.reg.pricing; len(x.bidders) != 0 || x.pricer != nil {
		t.Fatalf("two models in one home bid: %+v", x.bidders)
	}

	b := s.mustBackend(familyHello("b", 1))
	s.run(s.clock.now + 1000*ms)
	x := &s.e.reg.pricing
	x.bidders = slices.DeleteFunc(x.bidders, func(b bidder) bool { return !b.chooses })
	if len(x.bidders) != 3 || len(x.homes) != 1 || x.homes[0].Price != plan.LeastPrice {
		t.Fatalf("%d classes of the family have a choice, want 3; prices are %+v", len(x.bidders), x.homes)
	}
	b.Close()
	at := x.at
	s.run(s.clock.now + 1000*ms)
	if len(x.bidders) != 0 || x.at != at {
		t.Errorf("without the family %v bid, the latest at %v", x.bidders, x.at)
	}
}

// BenchmarkRenewPrices renews the prices of 1,000 families of 5 variants on 3 kinds of GPUs while their load moves.
func BenchmarkRenewPrices(b *testing.B) {
	s := newStage(b, Options{})
	rng := rand.New(rand.NewPCG(1, 2))
	for k := range 3 {
		h := hello(fmt.Sprint("b", k), 100, slope)
		for q := range 1000 {
			for v := range 5 {
				by := float64(v+1) / 5 * (1 + float64(k)/3) * (0.5 + rng.Float64())
				accuracy := 0.7 + 0.05*float64(v) + 0.05*float64(q)/1000
				h.Models = append(h.Models, wire.BackendModel{Profile: scaled(by),
					Info: model.Info{Name: fmt.Sprint(q, "-", v), Version: "1", SLO: 50e6, Family: fmt.Sprint(q), Accuracy: accuracy}})
			}
		}
		s.mustBackend(h)
	}

	f := s.frontend()
	id := uint64(0)
	for round := range 20 {
		for q := range 1000 {
			for range 1 + (q+round)%5 {
				id++
				f.ask(id, fmt.Sprint(q), 50*ms)
			}
		}
		s.run(s.clock.now + 10*ms)
	}

	x := &s.e.reg.pricing
	b.ReportAllocs()
	for b.Loop() {
		s.clock.now += sched.Time(houseEvery)
		x.renewPrices(s.clock.now)
	}
	if len(x.homes) != 3 {
		b.Fatal(x.homes)
	}
}

// TestSubClustersBeyondTheMarket shows that, of more sub-clusters than a market takes, those with the most GPUs have
// a price, and that this is logged once.
func TestSubClustersBeyondTheMarket(t *testing.T) {
	var log logtest.Buffer
	s := newStage(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for k := range plan.KindsMax + 2 {
		h := familyHello(fmt.Sprint("b", k), 2)
		if k == 3 || k == 5 {
			h.GPUs = h.GPUs[:1]
		}
		for i := range h.Models {
			h.Models[i].Profile = scaled(math.Pow(1.2, float64(k)) * []float64{0.25, 0.5, 1}[i])
		}
		s.mustBackend(h).tables = true
	}
	f := s.frontend()
	last := s.steadily(f, "v", 0, ms, 500*ms)
	s.run(s.clock.now + 60*ms)

	x := &s.e.reg.pricing
	if len(x.homes) != plan.KindsMax || slices.ContainsFunc(x.homes, func(h plan.PricedHome) bool { return h.GPUs != 2 }) {
		t.Errorf("prices of %+v", x.homes)
	}
	if n := strings.Count(log.String(), "only the sub-clusters with most GPUs have a price"); n != 1 {
		t.Errorf("it was said %d times", n)
	}
	if n := s.served(1, last); n != int(last) {
		t.Errorf("%d of %d requests were served", n, last)
	}
}

// TestLearnersBuyTimeWhileTheyHaveSteps shows that a share of the GPUs is kept from variants as long as a backend
// offers spare work.
func TestLearnersBuyTimeWhileTheyHaveSteps(t *testing.T) {
	s := newStage(t, Options{LearnShare: 0.2})
	b := s.mustBackend(familyHello("b", 1))
	f := s.frontend()
	last := uint64(0)
	learning := func() float64 {
		// Work with a step that does not end is suspended, and buys nothing more.
		for range 60 {
			last = s.steadily(f, "v", last, 5*ms, 5*ms)
			b.endAll()
		}
		return s.e.reg.pricing.homes[0].Learning
	}

	before := learning()
	b.OfferSpare([]wire.SpareOffer{{Work: 1, Step: 5e6, Weight: 1}})
	during := learning()
	b.OfferSpare([]wire.SpareOffer{{Work: 1}})
	if after := learning(); before != 0 || during != 0.2 || after != 0 {
		t.Errorf("%v of the GPUs is kept, then %v, then %v; want 0, 0.2 and 0", before, during, after)
	}
	if err := (&Options{LearnShare: 0.6}).checkOptions(); err == nil || !strings.Contains(err.Error(), "learn share 0.6, want 0 to 0.5") {
		t.Error(err)
	}
}

// TestPricesHaveAPeriodOfTheirOwn shows that prices are renewed every 20 ms while a service has a choice, and that without
// one the engine asks to be woken no more often than for housekeeping.
func TestPricesHaveAPeriodOfTheirOwn(t *testing.T) {
	s := newStage(t, Options{})
	b := s.mustBackend(familyHello("b", 1))
	s.run(s.clock.now + 200*ms)
	renewals, last := 0, s.e.reg.pricing.at
	for range 1000 {
		s.run(s.clock.now + ms)
		if at := s.e.reg.pricing.at; at != last {
			renewals, last = renewals+1, at
		}
	}
	if renewals < 48 || renewals > 50 {
		t.Errorf("prices were renewed %d times in a second, want 50", renewals)
	}

	b.Close()
	s.run(s.clock.now + 1000*ms)
	if due := sched.Time(s.e.prices.Load()).Sub(s.clock.now); due < 0 || due > sched.Duration(houseEvery) || s.e.reg.pricing.at > s.clock.now-900*ms {
		t.Errorf("without a choice prices are due in %v, and were last renewed at %d of %d", time.Duration(due), s.e.reg.pricing.at, s.clock.now)
	}
	before := s.e.prices.Load()
	s.run(s.clock.now + 60*ms)
	if after := s.e.prices.Load(); after-before > int64(houseEvery) {
		t.Errorf("without a choice prices were looked at more than once in 60 ms")
	}
}
