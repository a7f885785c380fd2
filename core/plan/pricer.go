package plan

import (
	"fmt"
	"time"
)

// Pricer turns what services want of GPU time into one price for each sub-cluster (UNIFIED U3): a renewal takes what
// everybody bids, and sells less of the GPUs' time while requests go bad. It holds the memory of its making. Not safe for concurrent use.
type Pricer struct {
	targets Targets
	market  Market
	prices  Prices
	homes   []PricedHome
	place   []int32                         // by sub-cluster: its place in homes +1, 0: it has none
	bids    int                             // bidders that may get something
	bidding bool                            // offers are being added to the bid in place bids
	stepped func(recent, rate float64) bool // whether the rates differ by more than chance

	factor float64 // on all prices, see discount
	full   float64 // on the share of GPU time that is sold, see sell
	from   float64 // what full was when it began to fall
	falls  bool    // it fell at the latest renewal
	// What all bid together, and by what this has changed beyond chance.
	rate, recent, scale float64
}

// PricedHome is a sub-cluster and what its GPUs cost.
type PricedHome struct {
	SubCluster uint32
	GPUs       int
	Others     float64 // demand in GPUs of the models that choose neither variant nor home
	BadShare   float64 // of its requests in the last second
	BusyShare  float64 // of its GPUs' time since the last renewal, what was given out
	Ahead      float64 // GPUs whose time within PriceHorizon is given out already
	Learning   float64 // share of its GPUs' time that learners want; once renewed, that they bought: it is not sold to requests
	Price      float64 // of a GPU second, in units of accuracy per request
	Planned    float64 // the same before what is taken off while GPU time is left over
}

// NewPricer returns a Pricer whose prices are 0. stepped says whether a rate over a tenth of a second and the same over one differ by
// more than chance explains (sched.Stepped).
func NewPricer(stepped func(recent, rate float64) bool) *Pricer {
	return &Pricer{stepped: stepped, factor: 1, full: 1, scale: 1, targets: DefaultTargets(), market: Market{Value: DefaultValue}}
}

// Begin starts a renewal: homes are all sub-clusters that have GPUs.
func (p *Pricer) Begin(homes []PricedHome) error {
	if len(homes) > KindsMax {
		return fmt.Errorf("plan: prices of %d sub-clusters, at most %d have one", len(homes), KindsMax)
	}

	clear(p.place)
	p.homes = append(p.homes[:0], homes...)
	p.market.Capacity = p.market.Capacity[:0]
	for i, h := range p.homes {
		for int(h.SubCluster) >= len(p.place) {
			p.place = append(p.place, 0)
		}
		p.place[h.SubCluster] = int32(i) + 1

		// What has no choice comes first, but never leaves nothing: an answer of a family is worth as much.
		share := p.full * p.shareOf(h.GPUs)
		capacity := share * float64(h.GPUs)
		p.market.Capacity = append(p.market.Capacity, max(capacity-h.Others-share*h.Ahead, capacityLeast*capacity))
	}
	p.bids, p.bidding, p.rate, p.recent, p.scale = 0, false, 0, 0, 1
	return nil
}

// shareOf is how much of its time a cluster of GPUs can sell.
func (p *Pricer) shareOf(gpus int) float64 { return max(shareLeast, p.targets.At(gpus)) }

func (p *Pricer) placeOf(sub uint32) int {
	if int(sub) >= len(p.place) {
		return -1
	}

	return int(p.place[sub]) - 1
}

// Add takes in what one service bids: requests/s, the same over the last tenth of a second, and requests that are queued. Its
// offers follow by AddOffer; without one it gets nothing.
func (p *Pricer) Add(rate, recent float64, queued int) {
	p.endBid()

	// Bidders and their offers keep their memory from one renewal to the next.
	if p.bids == len(p.market.Bidders) {
		p.market.Bidders = append(p.market.Bidders, Bidder{})
	}
	b := &p.market.Bidders[p.bids]

	// What is queued has to be served within the horizon, beside what comes.
	b.Rate, b.Offers = rate+float64(queued)/PriceHorizon.Seconds(), b.Offers[:0]
	p.bidding = true
	p.rate += rate
	p.recent += recent
}

// AddOffer adds to the bid of the service that was added last one way to answer its requests, at a cost in GPU seconds each.
func (p *Pricer) AddOffer(sub uint32, accuracy, cost float64) {
	if at := p.placeOf(sub); at >= 0 {
		b := &p.market.Bidders[p.bids]
		b.Offers = append(b.Offers, Offer{Kind: int32(at), Accuracy: max(0, accuracy-LeastPrice*cost), Cost: cost})
	}
}

// endBid keeps the latest bid if something was offered.
func (p *Pricer) endBid() {
	if p.bidding && len(p.market.Bidders[p.bids].Offers) > 0 {
		p.bids++
	}
	p.bidding = false
}

// LeastPrice is what a GPU second costs where nothing else wants it; core/sched counts so, too. With it a price tells
// which of two kinds that answer alike is used first.
const LeastPrice = 0.01

// capacityLeast is the share of a sub-cluster's capacity that services with a choice bid for, whatever the others take.
const capacityLeast = 0.05

// Renew computes the prices, elapsed after the last renewal. The result is valid until the next call.
func (p *Pricer) Renew(elapsed time.Duration) ([]PricedHome, error) {
	if len(p.homes) == 0 {
		return nil, nil
	}
	p.endBid()
	m := p.market
	m.Bidders = m.Bidders[:p.bids]

	// All together show a step that is too small to show in each.
	if p.stepped(p.recent, p.rate) {
		p.scale = p.recent / max(1, p.rate)
		for i := range m.Bidders {
			m.Bidders[i].Rate *= p.scale
		}
	}
	p.bidLearners(&m)
	learners := len(m.Bidders)
	p.bidRoom(&m)
	if err := p.prices.Renew(&m); err != nil {
		return nil, err
	}

	p.noteBought(&m, learners)
	p.sell(elapsed)

	// What is told of a home and what decisions read differ by the discount alone.
	for k := range p.homes {
		h := &p.homes[k]
		h.Planned = p.prices.Price[k] + LeastPrice
		h.Price = p.prices.Price[k]*p.factor + LeastPrice
	}

	return p.homes, nil
}

// sell follows how the time that was sold is used.
func (p *Pricer) sell(elapsed time.Duration) {
	bad, busiest := 0.0, -1.0
	for k := range p.homes {
		h := &p.homes[k]
		bad = max(bad, h.BadShare)
		busiest = max(busiest, h.BusyShare+h.Learning-p.shareOf(h.GPUs))
	}

	// The fullest kind decides: prices fall only while all kinds have time left over. Plans know means; deadlines may be too
	// tight for how requests and long batches come, and then less is to be sold.
	p.factor = discount(p.factor, busiest, elapsed)
	p.sellAgain(badRate*(badLeast-bad)*elapsed.Seconds(), elapsed)
}

// sellAgain changes the share that is sold. What one bad second took comes back soon, but for the last part below where the fall began: there
// it rises as slowly as few bad requests let it, so that what is always too much is found and not tried again and again.
func (p *Pricer) sellAgain(change float64, elapsed time.Duration) {
	fell := p.falls
	if p.falls = change < 0; p.falls {
		if !fell {
			p.from = p.full
		}
	} else if near := p.from - fullNear; p.full < near {
		change = max(change, min(fullRise*elapsed.Seconds(), near-p.full))
	}
	p.full = min(1, max(fullLeast, p.full+change))
}

// discount lowers all prices while GPU time of every kind is left over that somebody would use at a lower one, and
// takes that back when it is used up; what a kind costs in comparison to others stays. At the planned price a family that
// needs two variants finds them equally good, and which one it takes depends on the batches at hand: without this it took the lighter one too often.
func discount(factor, beyondTarget float64, elapsed time.Duration) float64 {
	change := 1 + discountRate*beyondTarget*elapsed.Seconds()
	return min(1, max(discountMost, factor*max(0.5, change)))
}

const (
	discountRate = 3 // per second
	discountMost = 0.25
	// shareLeast is the share of its time that the smallest cluster sells: u* of few GPUs leaves more than families need, whose
	// accuracy gives way before their requests do.
	shareLeast = 0.85
	// badRate is by how much that share falls per second and bad share beyond badLeast, down to fullLeast of it; below badLeast it
	// rises again, by fullRise per second where it is further than fullNear from where it fell from.
	badRate, badLeast, fullLeast = 2, 0.002, 0.5
	fullRise, fullNear           = 0.1, 0.05
)

// Scale returns by what the latest renewal found that all rates have to be multiplied.
func (p *Pricer) Scale() float64 { return p.scale }

// PriceHorizon is what a renewal looks ahead.
const PriceHorizon = time.Second

// Requests that ended count towards a price for about so long, and a service bids from so many requests per second: those of
// what takes less count as a demand without a choice.
const (
	countedFor = time.Second
	bidsFrom   = 0.1
)

// MayBid says whether a service with so many requests per second bids.
func MayBid(rate float64) bool { return rate >= bidsFrom }

// Counted returns how much of the time between two renewals is looked at: of a process that was stopped nothing is known.
func Counted(elapsed time.Duration) time.Duration { return min(elapsed, countedFor) }

// RecentEnds are requests that ended in about the last second: with an output or a batch, and because there was none in time.
type RecentEnds struct{ Good, Bad float64 }

// Fade lets time pass: older counts fade.
func (r *RecentEnds) Fade(elapsed time.Duration) {
	keep := max(0, 1-float64(elapsed)/float64(countedFor))
	r.Good *= keep
	r.Bad *= keep
}

// Add counts more. Batches that were taken back count for nothing.
func (r *RecentEnds) Add(good, bad float64) {
	r.Good += max(0, good)
	r.Bad += max(0, bad)
}

// BadShare is the share of bad ones.
func (r *RecentEnds) BadShare() float64 { return r.Bad / max(1, r.Good+r.Bad) }

// OthersDemand is the demand of all models of a sub-cluster less that of those that bid.
func OthersDemand(all, bidders float64) float64 { return max(0, all-bidders) }
