package plan

import (
	"math"
	"testing"
	"time"
)

// TestRoomIsSoldLast: one and a half of 16 GPUs are sold only to bidders that gain more from a GPU second than a
// thousandth of the price at which the first request would go unserved, and as many more at three times that price.
// Time that requests need to be answered at all is sold in any case.
func TestRoomIsSoldLast(t *testing.T) {
	const gpus, light, more = 16, 0.0385, 0.1 // GPU seconds per request; the first goes unserved at 100
	for _, x := range []struct {
		gain, rate float64 // of a GPU second, of requests/s
		kept       float64 // GPUs
	}{{0.05, 200, 3}, {0.2, 200, 1.5}, {1, 200, 0}, {0.05, 390, 3}} {
		p := NewPricer(func(_, _ float64) bool { return false })
		if err := p.Begin([]PricedHome{{GPUs: gpus}}); err != nil {
			t.Fatal(err)
		}
		p.Add(x.rate, x.rate, x.rate, 0)
		p.AddOffer(0, 0.85, light)
		p.AddOffer(0, 0.85+more*x.gain, light+more)
		if _, err := p.Renew(100 * time.Millisecond); err != nil {
			t.Fatal(err)
		}

		want := max(x.rate*light, gpus*p.shareOf(gpus)-x.kept)
		if got := x.rate * costOf(p, 0); math.Abs(got-want) > 1e-6 {
			t.Errorf("%.0f requests/s that gain %.2f by a GPU second get %.2f GPUs, want %.2f", x.rate, x.gain, got, want)
		}
	}
}

// costOf returns the mean GPU seconds of a bidder's requests.
func costOf(p *Pricer, q int) float64 {
	offers, main := p.market.Bidders[q].Offers, p.prices.Main[q]
	sum, rest := 0.0, 1.0
	for _, s := range p.prices.Splits {
		if int(s.Bidder) == q {
			sum, rest = sum+s.Share*offers[s.Offer].Cost, rest-s.Share
		}
	}
	return sum + rest*offers[main].Cost
}
