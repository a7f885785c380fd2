package engine

import (
	"slices"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
)

// pricing renews the prices of GPU time every houseEvery (UNIFIED U3), as long as some service can choose between
// variants or homes. What has no choice is not looked at, so that neither many models nor many hours cost anything. The
// registry owns it.
type pricing struct {
	e       *Engine
	pricer  *plan.Pricer
	bidders []bidder // by partition, then by id
	subs    []pricedSub
	crowded bool // more sub-clusters than can have a price, and it was logged

	homes []plan.PricedHome // of the latest renewal
	at    sched.Time        // of the latest renewal
	marks marks
	due   sched.Time // not before: see restShare
}

// bidder is a service with a choice, or a class of a family.
type bidder struct {
	id        uint32
	chooses   bool   // else it is only explained, as a class of a family with one variant left
	sent, bad uint64 // as of the latest renewal
	bid       sched.Bid
}

// pricedSub is a sub-cluster that such services have homes in.
type pricedSub struct {
	number uint32
	busy   sched.Duration // GPU time given out until the latest renewal
	ends   plan.RecentEnds
	since  sched.Time // it has a price since then
	paid   float64    // Σ price·seconds since then
	paidAt [marksKept]float64
}

const (
	// restShare is how many times as long as it took a renewal is followed by none: prices take a fiftieth of a core
	// at most, however many services have a choice.
	restShare = 50
	// bidsAtOnce is how many services bid with their partition's lock held.
	bidsAtOnce = 64
)

// listBidders takes up the services that have a choice now. What was counted of those that had one before is kept.
func (g *registry) listBidders() {
	var ids []uint32
	for _, m := range g.models {
		if m.served() && (m.chooses || m.class != nil) {
			ids = append(ids, m.info.ID)
		}
	}

	// By partition, so that renewals take each lock few times.
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

			// Counting starts now: what ended before it had a choice moves no price.
			b.sent, b.bad = p.ends(id)

			p.markAll(id)
			p.mu.Unlock()
		}
		b.chooses = g.models[id].chooses
		x.bidders = append(x.bidders, b)

		// A service without a choice is explained, but moves no price.
		if !b.chooses {
			continue
		}
		for _, h := range g.models[id].homes {
			used[h.sub] = true
		}
	}
	x.listSubs(g, used)
}

// listSubs takes up the sub-clusters that are used, or those of them with most GPUs.
func (x *pricing) listSubs(g *registry, used []bool) {
	former := x.subs
	x.subs = nil
	for n, u := range used {
		if !u {
			continue
		}

		s := pricedSub{number: uint32(n), since: g.e.clock.Now()}

		// One that stays keeps its sums: the busy share is a difference of two readings.
		if k := slices.IndexFunc(former, func(f pricedSub) bool { return f.number == s.number }); k >= 0 {
			s = former[k]
		}
		x.subs = append(x.subs, s)
	}

	// The limit bounds the solver's work; the others go without a price.
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

// AddBid hands what a service bids to a pricer.
func AddBid(p *plan.Pricer, b *sched.Bid) {
	p.Add(b.Rate, b.Recent, b.Queued)
	for i := range b.Offers {
		o := &b.Offers[i]
		p.AddOffer(o.SubCluster, o.Accuracy, o.Cost)
	}
}

// renew puts new prices in force. Locks are taken one at a time.
func (x *pricing) renew(now sched.Time) {
	if len(x.bidders) == 0 || now < x.due {
		return
	}

	// Made at the first choice: an installation without one pays nothing for prices.
	if x.pricer == nil {
		x.pricer = plan.NewPricer(sched.Stepped)
	}

	// What was paid is summed at the old prices, so before they change.
	x.noteWhatWas(now)
	elapsed := plan.Counted(time.Duration(now.Sub(x.at)))
	x.at = now

	// Bids come before homes: the others' demand is what is left without the bidders'.
	x.collectBids(now, elapsed)
	x.lookAtHomes(now, elapsed)
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
		x.e.log.Error("prices not renewed", "err", err) // none of the numbers comes from outside
		return
	}

	// Every partition holds its own copy, so that a decision reads prices under its own lock alone.
	for _, p := range x.e.parts {
		p.mu.Lock()
		for k := range x.homes {
			p.s.SetPrice(x.homes[k].SubCluster, x.homes[k].Price)
		}
		p.mu.Unlock()
	}
	if by := x.pricer.Scale(); by != 1 {
		for _, p := range x.e.parts {
			p.mu.Lock()
			p.s.ScaleRates(by)
			p.mu.Unlock()
		}
	}
	x.due = now.Add(restShare * x.e.clock.Now().Sub(now))
}

// collectBids asks every service what it wants, and counts how its requests ended since the last renewal.
func (x *pricing) collectBids(now sched.Time, elapsed time.Duration) {
	for k := range x.subs {
		x.subs[k].ends.Fade(elapsed)
	}

	for i := 0; i < len(x.bidders); {
		p := x.e.partition(sched.ModelID(x.bidders[i].id))
		p.mu.Lock()
		for n := 0; n < bidsAtOnce && i < len(x.bidders) && x.e.partition(sched.ModelID(x.bidders[i].id)) == p; n++ {
			b := &x.bidders[i]

			// A service that bids nothing now must not be added with its last bid.
			b.bid.Rate, b.bid.Offers = 0, b.bid.Offers[:0]
			if b.chooses && plan.MayBid(p.s.RateOf(sched.ModelID(b.id))) {
				p.s.Bid(now, sched.ModelID(b.id), &b.bid)
			}
			sent, bad := p.ends(b.id)
			x.countBid(&b.bid, float64(sent)-float64(b.sent), float64(bad)-float64(b.bad))
			b.sent, b.bad = sent, bad
			i++
		}
		p.mu.Unlock()
	}
}

// ends returns how many requests of a service got a batch, and how many ended because there was none in time.
// mu is held.
func (p *partition) ends(id uint32) (sent, bad uint64) {
	if int(id) >= len(p.models) {
		return 0, 0
	}
	c := &p.models[id]
	return c.sent, c.outcomes[model.DeadlineCannotBeMet] + c.outcomes[model.QueueFull]
}

// countBid adds requests that ended to every home that could have served them.
func (x *pricing) countBid(bid *sched.Bid, good, bad float64) {
	last := -1
	for i := range bid.Offers {
		sub := bid.Offers[i].SubCluster
		if int(sub) == last {
			continue // offers of one home follow one another
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
		r := x.e.ranker(s.number)
		r.mu.Lock()
		load := r.s.Load()
		ahead := r.s.Ahead(now, sched.Duration(plan.PriceHorizon))
		learns := r.s.WantsSpare()
		var own float64
		for i := range x.bidders {
			if b := &x.bidders[i]; len(b.bid.Offers) > 0 {
				own += r.s.DemandOf(sched.ModelID(b.id))
			}
		}
		r.mu.Unlock()

		busy := load.Busy - s.busy
		s.busy = load.Busy

		// A sub-cluster that lost its GPUs has no capacity to divide by.
		if load.GPUs == 0 {
			continue
		}
		h := plan.PricedHome{SubCluster: s.number, GPUs: load.GPUs, Others: plan.OthersDemand(load.Demand, own), BadShare: s.ends.BadShare(),
			Ahead: float64(ahead) / float64(plan.PriceHorizon)}
		if learns {
			h.Learning = x.e.o.LearnShare
		}
		if elapsed > 0 {
			h.BusyShare = float64(busy) / float64(load.GPUs) / float64(elapsed)
		}
		x.homes = append(x.homes, h)
	}
}
