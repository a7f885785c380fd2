package sched

// A family's candidate may be offered to the Rankers of several homes. The first grant takes it and the
// other homes' come back unused (decision 0002), so an offer costs messages, not safety.

// refreshHomes is refresh for a family with several homes. Each offer becomes ripe at a time of its own: on slow
// GPUs sooner. So that these do not take every candidate, it goes to the homes in use, which the price
// finds as good as the best; and to the others when no GPU of the main home came in time.
func (p *Partition) refreshHomes(now Time, m *model, at int32) {
	f, n := m.family, m.q.len()
	if m.state != waiting {
		m.timer, m.offered = Never, 0
	}

	// Which homes are asked, and what each of them would do.
	overflowAt := f.overflowAt(now, m)
	next, anyRipe := m.q.first()-Time(m.soonest)+1, false
	if overflowAt > now {
		next = min(next, overflowAt)
	}
	news := p.worthTelling(now, m)
	ripeNext, grown := Never, n+m.newsStep() // of those that wait: the first to be ripe, and what may join unlooked at
	for k := range f.homes {
		h := &f.homes[k]
		x := &h.intention().execution
		if !h.staffed || m.isLateFor(now, h) || !h.inUse && now < overflowAt {
			p.withdrawFrom(m, h)
			continue
		}

		size := min(n, int(x.max))
		switch ripeAt := m.ripeIn(now, h.intention()); {
		case ripeAt <= now:
			anyRipe = true

			// A Ranker that knows as much is not told again.
			if !h.ripe || h.told != uint32(size) || p.avoids(now, m) {
				p.offerTo(m, h, size, true, now)
			}
		default:
			ripeNext = min(ripeNext, ripeAt)
			grown = min(grown, int(x.max)-1)
			if news || h.ripe {
				p.offerTo(m, h, size, false, ripeAt)
			}
		}
	}
	if news {
		m.offered = int32(n)
	}

	if anyRipe {
		m.state = ripe
		p.calm(m, m.queueMax)
		p.timers.arm(at, min(next, ripeNext))
		return
	}

	p.waitForHomes(now, m, at, min(next, ripeNext), grown)
}

// isLateFor says whether all that is queued is too late for a home. Its Ranker would grant the GPU that was too late
// again at once, for no other is free sooner.
func (m *model) isLateFor(now Time, h *home) bool {
	x := &h.residents[0]
	return m.q.last < max(now.Add(x.lead[1]), h.busyUntil.Add(x.exec[1]))
}

// waitForHomes sets the timer of a candidate that waits to the time next, or ahead of what it grows by until it has
// more than grown requests: until then the timer stays right, and most requests need not look.
func (p *Partition) waitForHomes(now Time, m *model, at int32, next Time, grown int) {
	f, calm := m.family, m.q.len()

	// The timer holds until the first home would be ripe with the requests that may still join unlooked at.
	ripeGrown := Never
	for k := range f.homes {
		if h := &f.homes[k]; h.told > 0 || h.staffed && h.inUse {
			x := &h.intention().execution
			ripeGrown = min(ripeGrown, m.q.first()-Time(x.lead[min(grown+1, int(x.max))]+m.margin))
		}
	}
	if ripeGrown > now {
		next, calm = min(next, ripeGrown), grown
	}

	m.state = waiting
	m.timer = next
	if p.o.Prompt > 0 {
		m.timer = min(m.timer, now.Add(p.lookAgain(now, m)))
	}

	p.calm(m, int32(calm))
	p.timers.arm(at, m.timer)
}

// overflowAt returns when the candidate is offered to homes that are not in use: one request's time after
// it asked the main home for a GPU, which is when it can no longer be served whole there.
func (f *family) overflowAt(now Time, m *model) Time {
	if ripeAt := m.ripeIn(now, f.homes[f.main].intention()); ripeAt > now {
		f.ripeSince = Never
		return Never
	}

	// The moment is kept over the arrivals that follow, or it would move on with each.
	if f.ripeSince == Never {
		f.ripeSince = now
	}
	n := min(m.q.len(), int(m.max))
	return f.ripeSince.Add(m.exec[n+1] - m.exec[n])
}

// ripeIn is ripeAt with another execution than the intended one.
func (m *model) ripeIn(now Time, r *resident) Time {
	if m.q.len() >= int(r.max) {
		return now
	}
	return m.q.first() - Time(r.lead[m.q.len()+1]+m.margin)
}

// newsStep is by how many requests a waiting candidate grows before it is looked at again.
func (m *model) newsStep() int { return max(1, m.q.len()/newsEvery) }

// worthTelling says whether Rankers should hear of a waiting candidate: see refresh.
func (p *Partition) worthTelling(now Time, m *model) bool {
	if m.load >= tight || p.silent(now, m) {
		return true
	}
	return 2*m.q.len() >= 3*int(m.offered) && m.growth(now) <= p.o.growthMax(m.load)
}

// withdrawFrom takes a model's candidate from a home's Ranker.
func (p *Partition) withdrawFrom(m *model, h *home) {
	if h.told > 0 {
		p.offerTo(m, h, 0, false, 0)
	}
}

// offerTo is offer to one of several homes.
func (p *Partition) offerTo(m *model, h *home, size int, ripe bool, execAt Time) {
	m.seq++
	h.told, h.ripe = uint32(size), ripe

	// A home's part of the demand is by what it serves, at its own cost of a request.
	x := h.intention()
	demand := int64(float64(p.demand(m)) * m.family.share(h) * x.cost / m.family.homes[m.family.main].intention().cost)
	p.out.Candidates = append(p.out.Candidates, Candidate{
		Model: m.id, SubCluster: h.sub, Seq: m.seq, Size: uint32(size), Ripe: ripe, ExecAt: execAt,
		Rank: m.rankIn(&x.execution, size), Last: m.last, Pace: m.pace, Demand: demand, Least: h.leastDemand(demand),
		Avoid: p.avoided(m),
	})
}

// reconsiderHomes acts on GPUs of a home that have all gone, or that came to one without.
func (p *Partition) reconsiderHomes(now Time, m *model, at int32, subCluster uint32) {
	if m.family.homeIn(subCluster) == nil {
		return
	}

	// Which home is the main one may have changed with the GPUs.
	m.rate.derive(m)
	p.settle(now, m, at)
}
