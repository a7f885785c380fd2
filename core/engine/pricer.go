package engine

import (
	"fmt"
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
)

// Pricer turns what services want of GPU time into one price for each sub-cluster (UNIFIED U3): a renewal takes what
// everybody bids, and between renewals the price follows the requests that go bad. It holds the memory of its
// making. Not safe for concurrent use.
type Pricer struct {
	targets plan.Targets
	market  plan.Market
	prices  plan.Prices
	homes   []PricedHome
	follow  []float64 // by place in homes: its price without leastPrice
	bad     []float64
	factor  float64 // on all prices, see discount
	place   []int32 // by sub-cluster: its place in homes +1, 0: it has none
	bids    int
}

// PricedHome is a sub-cluster and what its GPUs cost.
type PricedHome struct {
	SubCluster uint32
	GPUs       int
	Others     float64 // demand in GPUs of the models that choose neither variant nor home
	BadShare   float64 // of its requests in the last second
	BusyShare  float64 // of its GPUs' time since the last renewal, what was given out
	Price      float64 // of a GPU second, in units of accuracy per request
	Planned    float64 // the same without what the bad share added
}

// NewPricer returns a Pricer whose prices are 0.
func NewPricer() *Pricer {
	return &Pricer{factor: 1, targets: plan.DefaultTargets(), market: plan.Market{Value: plan.DefaultValue}}
}

// Begin starts a renewal: homes are all sub-clusters that have GPUs. Those that it knows go on from their prices.
func (p *Pricer) Begin(homes []PricedHome) error {
	if len(homes) > plan.KindsMax {
		return fmt.Errorf("engine: prices of %d sub-clusters, at most %d have one", len(homes), plan.KindsMax)
	}

	// Prices move by place: they are carried over before the old places are forgotten.
	p.follow = p.carryOver(homes, p.follow)
	clear(p.place)
	p.homes = append(p.homes[:0], homes...)
	p.market.Capacity = p.market.Capacity[:0]
	for i, h := range p.homes {
		for int(h.SubCluster) >= len(p.place) {
			p.place = append(p.place, 0)
		}
		p.place[h.SubCluster] = int32(i) + 1

		// What has no choice comes first, but never leaves nothing: an answer of a family is worth as much.
		capacity := p.targets.At(h.GPUs) * float64(h.GPUs)
		p.market.Capacity = append(p.market.Capacity, max(capacity-h.Others, capacityLeast*capacity))
	}
	p.bids = 0
	return nil
}

// carryOver returns what is known of the homes by their new places, or 0 for new ones.
func (p *Pricer) carryOver(homes []PricedHome, known []float64) []float64 {
	p.bad = p.bad[:0]
	for i := range homes {
		value := 0.0
		if at := p.placeOf(homes[i].SubCluster); at >= 0 {
			value = known[at]
		}
		p.bad = append(p.bad, value)
	}
	return append(known[:0], p.bad...)
}

func (p *Pricer) placeOf(sub uint32) int {
	if int(sub) >= len(p.place) {
		return -1
	}
	return int(p.place[sub]) - 1
}

// Add takes in what one service bids.
func (p *Pricer) Add(bid *sched.Bid) {
	// Bidders and their offers keep their memory from one renewal to the next.
	if p.bids == len(p.market.Bidders) {
		p.market.Bidders = append(p.market.Bidders, plan.Bidder{})
	}
	b := &p.market.Bidders[p.bids]
	b.Rate, b.Offers = bid.Rate, b.Offers[:0]
	for i := range bid.Offers {
		o := &bid.Offers[i]
		if at := p.placeOf(o.SubCluster); at >= 0 {
			b.Offers = append(b.Offers, plan.Offer{Kind: int32(at), Accuracy: max(0, o.Accuracy-leastPrice*o.Cost), Cost: o.Cost})
		}
	}
	if len(b.Offers) > 0 {
		p.bids++
	}
}

// leastPrice is what a GPU second costs where nothing else wants it; core/sched counts so, too. With it a price tells
// which of two kinds that answer alike is used first.
const leastPrice = 0.01

// capacityLeast is the share of a sub-cluster's capacity that services with a choice bid for, whatever the others take.
const capacityLeast = 0.05

// Renew computes the prices, elapsed after the last renewal. The result is valid until the next call.
func (p *Pricer) Renew(elapsed time.Duration) ([]PricedHome, error) {
	if len(p.homes) == 0 {
		return nil, nil
	}
	m := p.market
	m.Bidders = m.Bidders[:p.bids]
	if err := p.prices.Renew(&m); err != nil {
		return nil, err
	}

	p.bad = p.bad[:0]
	busiest := -1.0
	for k := range p.homes {
		h := &p.homes[k]
		p.bad = append(p.bad, h.BadShare)
		busiest = max(busiest, h.BusyShare-p.targets.At(h.GPUs))
	}

	// The fullest kind decides: prices fall only while all kinds have time left over.
	p.factor = discount(p.factor, busiest, elapsed)
	p.prices.Follow(&m, p.follow, p.bad, elapsed)
	for k := range p.homes {
		h := &p.homes[k]
		h.Planned = p.prices.Price[k] + leastPrice
		h.Price = p.follow[k]*p.factor + leastPrice
	}
	return p.homes, nil
}

// discount lowers all prices while GPU time of every kind is left over that somebody would use at a lower one, and
// takes that back when it is used up; what a kind costs in comparison to others stays. At the planned price a family that needs two variants finds them equally good, and which one it
// takes depends on the batches at hand: without this it took the lighter one too often.
func discount(factor, beyondTarget float64, elapsed time.Duration) float64 {
	change := 1 + discountRate*beyondTarget*elapsed.Seconds()
	return min(1, max(discountMost, factor*max(0.5, change)))
}

const (
	discountRate = 3 // per second
	discountMost = 0.25
)
