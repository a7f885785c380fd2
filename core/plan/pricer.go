package plan

import (
	"fmt"
	"slices"
	"time"
)

// Pricer turns the demand of services for GPU time into one price for each sub-cluster (UNIFIED U3). A renewal takes
// all bids, and sells less of the GPUs' time while requests go bad. The Pricer keeps its working memory. It is not
// safe for concurrent use.
type Pricer struct {
	targets Targets
	market  Market
	prices  Prices
	homes   []PricedHome
	place   []int32                         // by sub-cluster: its index in homes plus 1; 0: it has none
	usual   []usualPrice                    // by sub-cluster
	bids    int                             // bidders that may get something
	bidding bool                            // offers are being added to bid number bids
	stepped func(recent, rate float64) bool // whether the rates differ by more than chance

	factor    float64 // on all prices; see discount
	sold      float64 // part of the sellable GPU time that is sold; see adaptToUse
	fellFrom  float64 // the value of sold when it began to fall
	isFalling bool    // it fell at the latest renewal
	// The total rate of all bids, and its change beyond chance.
	rate, recent, latest, scale float64
	step                        step
}

// PricedHome is a sub-cluster and the price of its GPUs.
type PricedHome struct {
	SubCluster uint32
	GPUs       int
	Others     float64 // demand in GPUs of the models that choose neither a variant nor a home
	BadShare   float64 // of its requests in the last second
	BusyShare  float64 // granted share of its GPUs' time since the last renewal
	Committed  float64 // GPUs whose time within PriceHorizon is already granted
	Learning   float64 // share of its GPUs' time that learners want; after a renewal, the share that they bought, which is not sold to requests
	Price      float64 // of a GPU second, in units of accuracy per request
	Usual      float64 // the mean price of the last seconds
	Planned    float64 // the price before the discount for unused GPU time
}

// Occupied returns the share of its GPUs' time that the home uses, for operators. Time is granted when a batch is sent,
// so that more than all of it may be granted between two renewals.
func (h *PricedHome) Occupied() float64 { return min(1, h.BusyShare) }

// NewPricer returns a Pricer whose prices are 0. stepped reports whether a rate over a tenth of a second differs from
// the rate over one second by more than chance (sched.Stepped).
func NewPricer(stepped func(recent, rate float64) bool) *Pricer {
	return &Pricer{stepped: stepped, factor: 1, sold: 1, scale: 1, targets: DefaultTargets(), market: Market{Value: DefaultValue}}
}

// Begin starts a renewal. homes are all sub-clusters that have GPUs.
func (p *Pricer) Begin(homes []PricedHome) error {
	if len(homes) > KindsMax {
		return fmt.Errorf("plan: prices of %d sub-clusters, at most %d have one", len(homes), KindsMax)
	}

	clear(p.place)
	p.homes = append(p.homes[:0], homes...)
	p.market.Capacity = p.market.Capacity[:0]
	for i, h := range p.homes {
		for int(h.SubCluster) >= len(p.place) {
			p.place, p.usual = append(p.place, 0), append(p.usual, usualPrice{})
		}
		p.place[h.SubCluster] = int32(i) + 1

		// Models without a choice come first, but they never take everything: an answer of a family is worth as much
		// as theirs.
		share := p.sold * p.shareOf(h.GPUs)
		capacity := share * float64(h.GPUs)
		p.market.Capacity = append(p.market.Capacity, max(capacity-h.Others-share*(1-committedUsual)*h.Committed, capacityLeast*capacity))
	}
	p.bids, p.bidding, p.rate, p.recent, p.latest, p.scale = 0, false, 0, 0, 0, 1
	return nil
}

// shareOf returns the share of its time that a cluster of GPUs can sell.
func (p *Pricer) shareOf(gpus int) float64 {
	usable := max(shareLeast, p.targets.At(gpus))
	return usable + roomSold*(1-usable)
}

func (p *Pricer) placeOf(sub uint32) int {
	if int(sub) >= len(p.place) {
		return -1
	}

	return int(p.place[sub]) - 1
}

// Add adds the bid of one service: its rate in requests/s, the same over the last tenth and the last fortieth of a second,
// and its number of queued requests. Its offers follow by AddOffer. A service without offers gets nothing.
func (p *Pricer) Add(rate, recent, latest float64, queued int) {
	p.endBid()

	// Bidders and their offers keep their memory from one renewal to the next.
	if p.bids == len(p.market.Bidders) {
		p.market.Bidders = append(p.market.Bidders, Bidder{})
	}
	b := &p.market.Bidders[p.bids]

	// Queued requests must be served within the horizon, in addition to new ones.
	b.Rate, b.Offers = rate+float64(queued)/PriceHorizon.Seconds(), b.Offers[:0]
	p.bidding = true
	p.rate += rate
	p.recent += recent
	p.latest += latest
}

// AddOffer adds to the latest bid one way to answer its requests, with its cost in GPU seconds per request.
func (p *Pricer) AddOffer(sub uint32, accuracy, cost float64) {
	if at := p.placeOf(sub); at >= 0 {
		b := &p.market.Bidders[p.bids]
		b.Offers = append(b.Offers, Offer{Kind: int32(at), Accuracy: max(0, accuracy-LeastPrice*cost), Cost: cost})
	}
}

// endBid keeps the latest bid if it has an offer.
func (p *Pricer) endBid() {
	if p.bidding && len(p.market.Bidders[p.bids].Offers) > 0 {
		p.bids++
	}
	p.bidding = false
}

// LeastPrice is the price of a GPU second without other demand; core/sched uses it too. With it, a price decides
// which of two equally good kinds is used first.
const LeastPrice = 0.01

// capacityLeast is the share of a sub-cluster's capacity that services with a choice can always bid for, whatever the
// other models take.
const capacityLeast = 0.05

// Renew computes the prices, elapsed after the last renewal. The result is valid until the next call.
func (p *Pricer) Renew(elapsed time.Duration) ([]PricedHome, error) {
	if len(p.homes) == 0 {
		return nil, nil
	}
	p.endBid()
	m := p.market
	m.Bidders = m.Bidders[:p.bids]

	p.followSteps(elapsed)
	for i := range m.Bidders {
		m.Bidders[i].Rate *= p.scale
	}
	p.bidLearners(&m)
	learners := len(m.Bidders)
	p.bidRoom(&m)
	if err := p.prices.Renew(&m); err != nil {
		return nil, err
	}

	p.noteBought(&m, learners)
	p.adaptToUse(elapsed)

	// The price that is reported for a home and the price that decisions read differ only by the discount.
	for k := range p.homes {
		h := &p.homes[k]
		h.Planned = p.prices.Price[k] + LeastPrice
		h.Price = p.prices.Price[k]*p.factor + LeastPrice
		h.Usual = p.usual[h.SubCluster].update(h, p.step.lasts(), elapsed.Seconds())
	}

	return p.homes, nil
}

// followSteps finds the factor by which all rates have changed together beyond chance. The sum of all rates shows a step that is
// too small to show in a single rate.
func (p *Pricer) followSteps(elapsed time.Duration) {
	if p.stepped(p.recent, p.rate) {
		// Demand that is several times as high is no chance, and the mean of a tenth of a second is still far below it.
		after := p.recent
		if p.latest > suddenLeast*p.rate {
			after = max(after, p.latest)
		}
		p.scale = after / max(1, p.rate)
		p.step.note(p.rate, after)
		return
	}

	// After a burst the mean of the last second would count the burst's requests for the rest of that second.
	p.step.pass(elapsed.Seconds())
	if before := p.step.before; before > 0 && !p.stepped(p.recent, before) {
		p.scale = min(1, max(before, p.recent)/max(1, p.rate))
		p.step = step{}
	}
}

// adaptToUse changes the discount and the sold share by how the time was used that was sold.
func (p *Pricer) adaptToUse(elapsed time.Duration) {
	bad, busiest := 0.0, -1.0
	for k := range p.homes {
		h := &p.homes[k]
		bad = max(bad, h.BadShare)
		busiest = max(busiest, h.BusyShare+h.Learning-p.shareOf(h.GPUs))
	}

	// The fullest kind decides: prices fall only while all kinds have unused time. Seconds in which no time has a price tell
	// nothing about prices.
	if slices.Max(p.prices.Price) > 0 {
		p.factor = discount(p.factor, busiest, elapsed)
	}

	// Prices are computed from mean rates. If deadlines are too tight for bursts or for long batches, requests go bad at these
	// prices, and less time must be sold.
	p.adjustSold(badRate*(badLeast-bad)*elapsed.Seconds(), elapsed)
}

// adjustSold changes the share that is sold. After a bad second it rises quickly again, up to a little below the value where
// the fall began. From there it rises only as slowly as few bad requests allow, so that a share that is always too large is
// not tried again and again.
func (p *Pricer) adjustSold(change float64, elapsed time.Duration) {
	fellBefore := p.isFalling
	if p.isFalling = change < 0; p.isFalling {
		if !fellBefore {
			p.fellFrom = p.sold
		}
	} else if near := p.fellFrom - soldNear; p.sold < near {
		change = max(change, min(soldRise*elapsed.Seconds(), near-p.sold))
	}
	p.sold = min(1, max(soldLeast, p.sold+change))
}

// discount lowers all prices while every kind has unused GPU time that somebody would use at a lower price, and takes
// the reduction back when the time is used up. The relative prices of kinds do not change. At the planned price a
// family that needs two variants finds both equally good, and the batch at hand decides which one it takes. Without
// the discount it took the lighter one too often.
func discount(factor, beyondTarget float64, elapsed time.Duration) float64 {
	change := 1 + discountRate*beyondTarget*elapsed.Seconds()
	return min(1, max(discountMost, factor*max(0.5, change)))
}

const (
	discountRate = 3 // per second
	discountMost = 0.25
	// committedUsual is the part of the GPU time granted ahead that is no loss of capacity: batches that run into the next
	// second follow batches that ran into this one.
	committedUsual = 0.5
	// shareLeast is the share of its time that the smallest cluster sells. u* of few GPUs leaves more than families
	// need, because their accuracy gives way before their requests do.
	shareLeast = 0.85
	// roomSold is the part of the room above u* that is sold, too: u* is measured without a choice of variants, where a
	// request that finds no room is lost. Here it gets a lighter variant (decision 0412).
	roomSold = 0.6
	// suddenLeast is the factor of a rise from which on the last fortieth of a second tells enough (decision 0414).
	suddenLeast = 4
	// badRate is the fall of that share per second and per bad share beyond badLeast, down to soldLeast of it. Below
	// badLeast the share rises again, by soldRise per second while it is further than soldNear from the value where
	// it began to fall.
	badRate, badLeast, soldLeast = 2, 0.002, 0.5
	soldRise, soldNear           = 0.1, 0.05
)

// Scale returns the factor for all rates that the latest renewal found.
func (p *Pricer) Scale() float64 { return p.scale }

// PriceHorizon is the time that a renewal looks ahead, PricePeriod the time between two renewals while some service has a
// choice between variants or homes.
const (
	PriceHorizon = time.Second
	PricePeriod  = 20 * time.Millisecond
)

// Requests that ended count towards a price for about countedFor. A service bids from bidsFrom requests per second
// on; services with fewer requests count as demand without a choice.
const (
	countedFor = time.Second
	bidsFrom   = 0.1
)

// MayBid reports whether a service with this rate, in requests per second, bids.
func MayBid(rate float64) bool { return rate >= bidsFrom }

// Counted returns the part of the time between two renewals that counts. While a process was stopped, nothing is
// known.
func Counted(elapsed time.Duration) time.Duration { return min(elapsed, countedFor) }

// RecentEnds counts the requests that ended in about the last second: good ones with an output or a batch, and bad
// ones without a batch in time.
type RecentEnds struct{ Good, Bad float64 }

// Fade reduces older counts as time passes.
func (r *RecentEnds) Fade(elapsed time.Duration) {
	keep := max(0, 1-float64(elapsed)/float64(countedFor))
	r.Good *= keep
	r.Bad *= keep
}

// Add adds counts. Batches that were taken back count for nothing.
func (r *RecentEnds) Add(good, bad float64) {
	r.Good += max(0, good)
	r.Bad += max(0, bad)
}

// BadShare returns the share of bad requests.
func (r *RecentEnds) BadShare() float64 { return r.Bad / max(1, r.Good+r.Bad) }

// OthersDemand returns the demand of all models of a sub-cluster minus the demand of the bidders.
func OthersDemand(all, bidders float64) float64 { return max(0, all-bidders) }
