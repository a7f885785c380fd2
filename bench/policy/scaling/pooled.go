package scaling

import (
	"context"
	"math"
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// The settings of the pooled policy.
const (
	planPeriod = sched.Duration(20e6) // prices are renewed so often
	// planHorizon is what a plan looks ahead: the requests queued and those expected within it, against
	// what the devices can still do within it.
	planHorizon = sched.Duration(1e9)
	// planFull is u*, the share of the devices' time that is planned while nothing is dropped. Each second in
	// which a share of the requests is dropped takes dropGain times that share off, down to planLeast.
	planFull, planLeast = 0.92, 0.46
	// dropGain and dropShare are the integral term between plans (UNIFIED U3): below dropShare the planned
	// share rises again.
	dropGain, dropShare = 2, 0.002
	// planBudget is the share of the SLO within which a planned batch gathers and runs.
	planBudget = 0.9
	// delayPrice is what a second's wait for a better option costs, in units of accuracy. It breaks ties:
	// at the optimum's prices several options are equally good.
	delayPrice = 0.1
	// gainMin is the least saving of device time per request for which a batch waits for more.
	gainMin = 1.02
)

// pooled is our policy in virtual time: one queue per family, and kind, device, variant and batch chosen at
// dispatch by the price of device time (docs/decisions/0091). Every device may run every variant.
type pooled struct {
	w        *sim.World
	families []pool
	devices  [][]int32 // by kind
	market   plan.Market
	prices   plan.Prices
	slots    [][]slot // by kind: the tentative schedule
	wake     sched.Time
	nextPlan sched.Time
	report   Report

	full             float64 // share of the devices' time that is planned now
	arrived, dropped float64 // requests of about the last second
}

// pool is a family with its queue.
type pool struct {
	queue     backlog
	rate      rate
	offers    []offer
	lightest  sched.Duration // least ℓ(1) of all offers; longer than any time without offers
	preferred sched.Duration // ℓ(1) of the offer that the plan prefers
	value     float64        // of one request more, at the plan's prices
	placed    int            // requests that the tentative schedule has a place for
}

// offer is a variant on a kind of device.
type offer struct {
	kind     int
	variant  int32
	accuracy float64
	profile  *profile.Profile
	cost     float64 // planned device seconds per request
}

func newPooled(ctx context.Context, w *sim.World, s Settings) Policy {
	p := &pooled{full: planFull, w: w, wake: sched.Never, market: plan.Market{Value: plan.DefaultValue}}
	for g := range w.GPUs {
		kind := w.Kind(int32(g))
		for len(p.devices) <= kind {
			p.devices = append(p.devices, nil)
		}
		p.devices[kind] = append(p.devices[kind], int32(g))
	}

	p.slots = make([][]slot, len(p.devices))
	p.market.Capacity = make([]float64, len(p.devices))

	for f := range w.Models {
		family := pool{offers: usableOffers(&w.Models[f], len(p.devices)), lightest: math.MaxInt64}
		for _, o := range family.offers {
			family.lightest = min(family.lightest, exec(o.profile, 1))
		}
		p.families = append(p.families, family)
		p.market.Bidders = append(p.market.Bidders, plan.Bidder{Offers: make([]plan.Offer, 0, len(family.offers))})
	}
	return p
}

// usableOffers lists the variants by kind that can meet the SLO at all.
func usableOffers(m *sim.Model, kinds int) []offer {
	var out []offer
	for kind := range kinds {
		for v := range m.Variants {
			o := offer{kind: kind, variant: int32(v), accuracy: m.Variants[v].Accuracy, profile: m.Variants[v].Profiles[kind]}
			if o.profile != nil && exec(o.profile, 1) <= m.SLO {
				out = append(out, o)
			}
		}
	}
	return out
}

// Report implements Policy.
func (p *pooled) Report() Report { return p.report }

// Arrive implements sim.Server.
func (p *pooled) Arrive(now sched.Time, r, family int32) {
	p.arrived++
	f := &p.families[family]
	f.rate.countRequest(now)
	f.queue.Push(r)
	p.startBatches(now)
}

// Done implements sim.Server.
func (p *pooled) Done(now sched.Time, device int32) { p.startBatches(now) }

// NextWake implements sim.Server.
func (p *pooled) NextWake() sched.Time { return min(p.wake, p.nextPlan) }

// Wake implements sim.Server.
func (p *pooled) Wake(now sched.Time) { p.startBatches(now) }

// startBatches drops what nothing can serve any more and starts what should start now.
func (p *pooled) startBatches(now sched.Time) {
	if now >= p.nextPlan {
		p.renewPrices(now)
		p.nextPlan = now.Add(planPeriod)
	}

	// Drops are counted here, since prices are renewed by their share.
	for f := range p.families {
		q := &p.families[f].queue
		before := q.Len()
		q.DropBefore(p.w, now.Add(p.families[f].lightest))
		p.dropped += float64(before - q.Len())
	}

	p.wake = sched.Never
	p.schedule(now)
}

// renewPrices sells the devices' time of the next horizon to the families: what is queued and what is
// expected, at the cost of the batches that can gather.
func (p *pooled) renewPrices(now sched.Time) {
	begun := time.Now()
	p.followSteps(now)
	p.followDrops()
	for f := range p.families {
		p.bid(now, f)
	}

	// Capacity is what the devices can still do within the horizon: running batches take their part.
	for kind, devices := range p.devices {
		p.market.Capacity[kind] = 0
		for _, g := range devices {
			busy := min(max(0, p.w.FreeAt(g).Sub(now)), planHorizon)
			p.market.Capacity[kind] += p.full * float64(planHorizon-busy) / float64(planHorizon)
		}
	}

	if err := p.prices.Renew(&p.market); err != nil {
		p.report.Err = err
		return
	}

	for f := range p.families {
		p.families[f].readPrices(&p.prices, p.market.Value)
	}
	p.report.Plans++
	p.report.Elapsed += time.Since(begun)
}

// bid writes a family's demand and offers into the market.
func (p *pooled) bid(now sched.Time, family int) {
	f, bidder := &p.families[family], &p.market.Bidders[family]

	// The queue is demand as well: it has to be served within the horizon.
	expected := f.rate.longAt(now)
	bidder.Rate = expected + float64(f.queue.Len())/float64(planHorizon)*1e9
	bidder.Offers = bidder.Offers[:0]
	for i := range f.offers {
		o := &f.offers[i]
		o.cost = o.plannedCost(p.w.Models[family].SLO, expected)
		bidder.Offers = append(bidder.Offers, plan.Offer{Kind: int32(o.kind), Accuracy: o.accuracy, Cost: o.cost})
	}
}

// plannedCost returns the device seconds per request of the best batch that gathers and runs within the
// planned part of the SLO at a rate.
func (o *offer) plannedCost(slo sched.Duration, rate float64) float64 {
	budget := planBudget * float64(slo) / 1e9
	best := o.profile.Exec(1).Seconds()
	for b := 2; b <= o.profile.Max(); b++ {
		run := o.profile.Exec(b).Seconds()

		// The first request waits for b - 1 others. The floor of the rate keeps a family without requests from
		// dividing by zero.
		if run+float64(b-1)/max(rate, 0.5) > budget {
			break
		}
		best = min(best, run/float64(b))
	}
	return best
}

// readPrices takes over what the plan says of a family.
func (f *pool) readPrices(prices *plan.Prices, answer float64) {
	f.value, f.preferred = 0, f.lightest
	for i := range f.offers {
		o := &f.offers[i]
		if v := answer + o.accuracy - prices.Price[o.kind]*o.cost; v > f.value {
			f.value, f.preferred = v, exec(o.profile, 1)
		}
	}
}

// followDrops plans less of the devices' time while requests are dropped: plans know means, and deadlines may
// be too tight for how requests and long batches come.
func (p *pooled) followDrops() {
	const period = float64(planPeriod) / 1e9

	if p.arrived > 0 {
		p.full -= dropGain * period * (p.dropped/p.arrived - dropShare)
		p.full = min(planFull, max(planLeast, p.full))
	}

	// Both counts forget at the same pace, about a second, so their ratio is the recent share.
	p.arrived *= math.Exp(-period)
	p.dropped *= math.Exp(-period)
}
