package engine

import (
	"slices"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
)

// pricing renews the prices of GPU time every plan.PricePeriod (UNIFIED U3) while some service can choose between variants
// or homes. It does not look at services without a choice, so these cost nothing. The registry owns it.
type pricing struct {
	e       *Engine
	pricer  *plan.Pricer
	bidders []bidder // by partition, then by id
	subs    []pricedSub
	crowded bool // there are more sub-clusters than can have a price, and that was logged

	homes []plan.PricedHome // of the latest renewal
	at    sched.Time        // of the latest renewal
	marks marks
	due   sched.Time // no renewal before this, see restShare

	// The latest renewal's own time until all bids were there: it does not count that turns went first.
	worked sched.Duration
}

// bidder is a service with a choice, or a class of a family.
type bidder struct {
	id        uint32
	chooses   bool   // otherwise it is only explained, such as a class of a family with one variant left
	sent, bad uint64 // as of the latest renewal
	bid       sched.Bid
}

// pricedSub is a sub-cluster in which such services have homes.
type pricedSub struct {
	number uint32
	busy   sched.Duration // GPU time granted until the latest renewal
	ends   plan.RecentEnds
	since  sched.Time // since when it has a price
	paid   float64    // Σ price·seconds since then
	paidAt [marksKept]float64
}

// restShare limits prices to a fiftieth of a core, however many services have a choice: after a renewal, no other follows
// for restShare times as long as it worked.
const restShare = 50

// listBidders lists the services that have a choice now. Services that stay in the list keep their counts.
func (g *registry) listBidders() {
	var ids []uint32
	for _, m := range g.models {
		if m.served() && (m.chooses || m.class != nil) {
			ids = append(ids, m.info.ID)
		}
	}

	// By partition, so that a renewal takes each lock few times.
	slices.SortStableFunc(ids, func(a, b uint32) int { return int(g.e.split.of(a)) - int(g.e.split.of(b)) })

	x := &g.pricing
	known := make(map[uint32]bidder, len(x.bidders))
	for _, b := range x.bidders {
		known[b.id] = b
	}
	x.bidders = x.bidders[:0]

	used := make([]bool, len(g.clusters))
	for _, id := range ids {
		b, ok := known[id]
		if !ok {
			b = bidder{id: id}
			p := x.e.partition(sched.ModelID(id))
			p.mu.Lock()

			// Counting starts now: requests that ended before must not move the price.
			b.sent, b.bad = p.countEnds(id)

			p.markAll(id)
			p.mu.UnlockBehind()
		}
		b.chooses = g.models[id].chooses
		x.bidders = append(x.bidders, b)

		// A service without a choice is explained, but does not move prices.
		if !b.chooses {
			continue
		}
		for _, h := range g.models[id].homes {
			used[h.sub] = true
		}
	}
	x.listSubs(g, used)
}

// listSubs lists the sub-clusters in use, limited to those with most GPUs.
func (x *pricing) listSubs(g *registry, used []bool) {
	former := x.subs
	x.subs = nil
	for n, u := range used {
		if !u {
			continue
		}

		s := pricedSub{number: uint32(n), since: g.e.clock.Now()}

		// A sub-cluster that stays keeps its sums: the busy share is a difference of two readings.
		if k := slices.IndexFunc(former, func(f pricedSub) bool { return f.number == s.number }); k >= 0 {
			s = former[k]
		}
		x.subs = append(x.subs, s)
	}

	// The limit bounds the solver's work; the others have no price.
	gpus := make([]int, len(x.subs))
	for i := range x.subs {
		gpus[i] = len(g.clusters[x.subs[i].number].gpus)
	}
	all := x.subs
	x.subs = x.subs[:0:0]
	for _, i := range plan.LargestHomes(gpus, plan.KindsMax) {
		x.subs = append(x.subs, all[i])
	}

	crowded := len(all) > len(x.subs)
	if crowded && !x.crowded {
		g.e.log.Warn("only the sub-clusters with most GPUs have a price", "subclusters", len(all), "priced", len(x.subs))
	}
	x.crowded = crowded
}

// AddBid adds a service's bid to a pricer.
func AddBid(p *plan.Pricer, b *sched.Bid) {
	p.Add(b.Rate, b.Recent, b.Latest, b.Queued)
	for i := range b.Offers {
		o := &b.Offers[i]
		p.AddOffer(o.SubCluster, o.Accuracy, o.Cost)
	}
}

// renewPrices puts new prices in force. Locks are taken one at a time.
func (x *pricing) renewPrices(now sched.Time) {
	if len(x.bidders) == 0 || now < x.due {
		return
	}

	// The pricer is made at the first choice: a system without choices pays nothing for prices.
	if x.pricer == nil {
		x.pricer = plan.NewPricer(sched.Stepped)
	}

	// Payments up to now are at the old prices, so they are summed before prices change.
	x.recordPaid(now)
	elapsed := plan.Counted(time.Duration(now.Sub(x.at)))
	x.at = now

	x.worked = 0

	// Bids come before homes: the demand of the others is the total without the bidders'.
	x.collectBids(now, elapsed)
	x.lookAtHomes(now, elapsed)
	began := x.e.clock.Now()
	err := x.pricer.Begin(x.homes)
	if err == nil {
		for i := range x.bidders {
			AddBid(x.pricer, &x.bidders[i].bid)
		}
		var homes []plan.PricedHome
		homes, err = x.pricer.Renew(elapsed)
		x.homes = append(x.homes[:0], homes...)
	}
	if err != nil {
		x.e.log.Error("prices not renewed", "err", err) // no number comes from outside
		return
	}

	// Every partition keeps its own copy, so a decision reads prices under its own lock.
	for _, p := range x.e.parts {
		p.mu.Lock()
		for k := range x.homes {
			h := &x.homes[k]
			p.s.SetPrice(h.SubCluster, h.Price, h.Usual)
		}
		p.mu.UnlockBehind()
	}
	if by := x.pricer.Scale(); by != 1 {
		for _, p := range x.e.parts {
			p.mu.holdForParts(func(from, n int) bool { return p.s.ScaleRates(by, from, n) })
		}
	}
	x.due = now.Add(restShare * (x.worked + x.e.clock.Now().Sub(began)))
}

// collectBids gets every service's bid, and counts the outcomes of its requests since the last renewal.
func (x *pricing) collectBids(now sched.Time, elapsed time.Duration) {
	for k := range x.subs {
		x.subs[k].ends.Fade(elapsed)
	}

	for i := range x.bidders {
		b := &x.bidders[i]
		id := sched.ModelID(b.id)

		p := x.e.partition(id)
		p.mu.Lock()
		began := x.e.clock.Now()

		// A service that bids nothing now must not be added with its last bid.
		b.bid.Rate, b.bid.Offers = 0, b.bid.Offers[:0]
		if b.chooses && plan.MayBid(p.s.RateOf(id)) {
			p.s.Bid(now, id, &b.bid)
		}
		sent, bad := p.countEnds(b.id)
		x.worked += x.e.clock.Now().Sub(began)
		p.mu.UnlockBehind()

		x.countBid(&b.bid, float64(sent)-float64(b.sent), float64(bad)-float64(b.bad))
		b.sent, b.bad = sent, bad
	}
}

// countEnds returns how many requests of a service got a batch, and how many ended because no batch was in time. mu is
// held.
func (p *partition) countEnds(id uint32) (sent, bad uint64) {
	if int(id) >= len(p.models) {
		return 0, 0
	}
	c := &p.models[id]
	return c.sent, c.outcomes[model.DeadlineCannotBeMet] + c.outcomes[model.QueueFull]
}

// countBid adds ended requests to every home that could have served them.
func (x *pricing) countBid(bid *sched.Bid, good, bad float64) {
	last := -1
	for i := range bid.Offers {
		sub := bid.Offers[i].SubCluster
		if int(sub) == last {
			continue // offers of one home are adjacent
		}
		last = int(sub)
		if k := slices.IndexFunc(x.subs, func(s pricedSub) bool { return s.number == sub }); k >= 0 {
			x.subs[k].ends.Add(good, bad)
		}
	}
}

// lookAtHomes describes the sub-clusters that have GPUs to the pricer.
func (x *pricing) lookAtHomes(now sched.Time, elapsed time.Duration) {
	x.homes = x.homes[:0]
	for k := range x.subs {
		s := &x.subs[k]

		// own is the demand of the services that bid; the other demand takes GPU time at any price.
		r := x.e.ranker(s.number)
		r.mu.Lock()
		load, learns := r.s.Load(), r.s.WantsSpare()
		r.mu.UnlockBehind()
		committed, own := r.committedTime(now, sched.Duration(plan.PriceHorizon)), x.demandIn(r)

		busy := load.Busy - s.busy
		s.busy = load.Busy

		// Without GPUs a sub-cluster has no capacity to divide by.
		if load.GPUs == 0 {
			continue
		}

		h := plan.PricedHome{SubCluster: s.number, GPUs: load.GPUs, Others: plan.OthersDemand(load.Demand, own), BadShare: s.ends.BadShare(),
			Committed: float64(committed) / float64(plan.PriceHorizon)}
		if learns {
			h.Learning = x.e.o.LearnShare
		}
		if elapsed > 0 {
			h.BusyShare = float64(busy) / float64(load.GPUs) / float64(elapsed)
		}
		x.homes = append(x.homes, h)
	}
}

// committedTime returns the GPU time within a span from now on that is already committed.
func (r *ranker) committedTime(now sched.Time, within sched.Duration) (sum sched.Duration) {
	r.mu.holdForParts(func(from, n int) bool {
		part, more := r.s.CommittedTime(now, within, from, n)
		sum += part
		return more
	})
	return sum
}

// demandIn returns the bidders' part of a ranker's demand, in GPUs.
func (x *pricing) demandIn(r *ranker) (own float64) {
	for some := range slices.Chunk(x.bidders, lookedAtOnce) {
		r.mu.Lock()
		for i := range some {
			if b := &some[i]; len(b.bid.Offers) > 0 {
				own += r.s.DemandOf(sched.ModelID(b.id))
			}
		}
		r.mu.UnlockBehind()
	}
	return own
}
