package sched

import vocabulary "downbeat.dev/core/model"

// refreshCandidate brings a model's candidate up to date after its queue has changed. The queue must not be empty, and
// its head must still be servable. Either the candidate is ripe, or the timer is set to when it will be.
//
// Waiting for one more request is free until the frontrun, the head's deadline minus ℓ(n+1) (Symphony §4.3, appendix
// C). The batch must be sent delay(n+1) before that.
func (p *Partition) refreshCandidate(now Time, m *model, at int32) {
	// A forecast costs a message, so it is sent only for spare work.
	if p.forecasting {
		p.sendForecast(now, m, at)
	}
	if m.family != nil && len(m.family.homes) > 1 {
		p.refreshHomes(now, m, at)
		return
	}

	m.crowded = p.isCrowded(m)
	n := m.q.len()
	head := m.q.first()
	ripeAt := m.ripeAt(now)
	if ripeAt <= now {
		m.state = ripe
		p.setQuiet(m, m.queueMax)
		if m.crowded {
			p.setQuiet(m, int32(n+n/newsEvery)) // the rank of a crowded model depends on its size
		}

		// Now the Ranker decides. The timer only tells when the head can no longer be served.
		p.timers.arm(at, head-Time(m.soonest)+1)
		p.offerCandidate(m, min(n, int(m.max)), true, now)
		return
	}

	if m.state != waiting {
		m.state, m.timer, m.offered = waiting, Never, 0
		m.forgetSkipped()
	}

	// The Ranker hears of a waiting candidate once it may be worth a GPU, and then of a few arrivals only. It may
	// therefore grant a GPU early on old news; formPlain declines such a grant.
	size := 2*n + 2
	if m.load >= tight {
		size = n + n/newsEvery + 1
		p.offerCandidate(m, n, false, ripeAt)
	} else if p.isSilent(now, m) || 2*n >= 3*int(m.offered) && m.growth(now) <= p.o.growthMax(m.load) {
		m.offered = int32(n)
		p.offerCandidate(m, n, false, ripeAt)
	} else if m.family != nil && !p.forecasting {
		size = m.skipChecks(now, size, p.o.growthMax(m.load))
	}

	// Every arrival makes ripeAt earlier. A timer set for a somewhat larger batch stays early enough while the queue
	// grows to that size, so the requests until then need no check.
	if ripeAt < m.timer {
		m.timer = ripeAt
		quiet := n
		size = min(size, int(m.max))
		if grownAt := m.grownAt(size); grownAt > now && grownAt < ripeAt {
			m.timer, quiet = grownAt, size-1
		}
		if p.o.Prompt > 0 {
			m.timer = min(m.timer, now.Add(p.lookAgain(now, m)))
		}
		p.setQuiet(m, int32(quiet))
		p.timers.arm(at, m.timer)
	}
}

// setQuiet lets requests join the queue without a check while it has fewer than n. Every request is checked while no
// GPU serves the model, and while a new request may use a GPU that the queued ones avoid.
func (p *Partition) setQuiet(m *model, n int32) {
	if m.q.quiet = min(n, p.room(m)); p.avoids(p.now, m) || p.hasNoGPUs(m) {
		m.q.quiet = 0
	}
}

// newsEvery sets how often the Ranker hears of a waiting candidate while GPUs are scarce: each time the queue has grown
// by 1/newsEvery.
const newsEvery = 8

// ripeAt returns when waiting stops being free, less the margin. It returns now if the batch cannot grow or the model
// is in a crowd.
func (m *model) ripeAt(now Time) Time {
	if m.q.len() >= int(m.max) || m.crowded {
		return now
	}
	return m.q.first() - Time(m.lead[m.q.len()+1]+m.margin)
}

// growth returns the share by which the candidate is expected to grow before it is ripe.
func (m *model) growth(now Time) float64 { return m.growthUntil(now, m.ripeAt(now)) }

// growthUntil is growth until another time.
func (m *model) growthUntil(now, until Time) float64 {
	return m.pace.growth(now, m.last, until, m.q.len())
}

// settleCandidate drops the heads that no batch can serve in time, and then brings candidate and timer up to date from
// any state.
func (p *Partition) settleCandidate(now Time, m *model, at int32) {
	// Drop first: the candidate must count only requests that can still be served.
	p.dropExpired(now.Add(m.soonest), m)
	had := m.state
	m.state, m.q.quiet = none, 0
	if m.q.len() > 0 {
		p.refreshCandidate(now, m, at)
		return
	}
	if p.forecasting {
		p.sendForecast(now, m, at)
	}

	// A Ranker that knows no candidate need not hear that there is none.
	if had != none {
		p.withdrawCandidate(m)
	} else if m.family != nil && len(m.family.homes) > 1 {
		p.withdrawAll(m)
	}
	p.timers.arm(at, now.Add(p.lookAgain(now, m)))
}

// dropExpired drops the heads whose deadline is before finish, the earliest end of a batch of one.
func (p *Partition) dropExpired(finish Time, m *model) {
	k := 0
	for ; k < m.q.len() && m.q.at(k).Deadline < finish; k++ {
		why := vocabulary.DeadlineCannotBeMet
		if p.hasNoGPUs(m) {
			why = vocabulary.NoBackend
		}
		p.drop(m.q.at(k), why)
		if m.family != nil && m.family.left.holds(m.q.at(k).Deadline) {
			p.out.Drops[len(p.out.Drops)-1].Rule = LeftBehind
		}
	}
	m.q.pop(k, &m.priorities)
	if k > 0 {
		p.noteLoss(m)
	}

	// After drops the model has a stronger claim to the next GPU, and asks for it sooner.
	m.addDebt(0, k)
	m.adjustMargin(0, k)
}

// decayRate lowers the estimated rate of a model without requests, and tells the Ranker. It also returns the memory
// that an overload left with the queue.
func (p *Partition) decayRate(now Time, m *model, at int32) {
	m.q.shrink(&p.out.memory)

	if m.rate.update(now, m) {
		p.countMember(m, at)
	}

	// Repeat until the rate is 0.
	if m.rate.demand > 0 && !m.rate.fixed {
		p.timers.arm(at, now.Add(p.lookAgain(now, m)))
	}
	p.withdrawCandidate(m)
}

// lookAgain returns how long until a model is checked again if no request arrives. With Prompt set, the end of a burst
// must be noticed soon; after that, checks become rarer.
func (p *Partition) lookAgain(now Time, m *model) Duration {
	if p.o.Prompt == 0 {
		return decayAfter
	}
	return max(silence, min(now.Sub(m.last), decayAfter))
}

// isSilent reports whether the time since the model's last request is long enough to say something about its rate. This
// matters only with Prompt.
func (p *Partition) isSilent(now Time, m *model) bool {
	return p.o.Prompt > 0 && !m.rate.fixed && now.Sub(m.last) >= silence
}

// demand returns the demand that the Ranker is told. The estimate of λ outlives a burst by seconds. With Prompt set, it
// is limited to one request in the time since the last arrival.
func (p *Partition) demand(m *model) int64 {
	if !p.isSilent(p.now, m) {
		return m.rate.demand
	}

	t := m.target
	return min(m.rate.demand, int64(1e6*float64(m.exec[t])/float64(t)/float64(p.now.Sub(m.last))))
}

// silence is the shortest time without requests that says something about a model's rate.
const silence Duration = 20_000_000

// offerCandidate sends the model's newest candidate to its Ranker.
func (p *Partition) offerCandidate(m *model, size int, ripe bool, execAt Time) {
	m.seq++
	m.forgetSkipped()

	demand := p.demand(m)
	least := demand
	if m.family != nil {
		least = m.family.homes[0].leastDemand(demand)
	}
	rank, avoid := p.rank(m, size), p.avoidedGroups(m)

	// In place, as in emitBatch.
	p.out.Candidates = append(p.out.Candidates, Candidate{})
	c := &p.out.Candidates[len(p.out.Candidates)-1]
	c.Model, c.SubCluster, c.Seq, c.Size, c.Ripe, c.ExecAt = m.id, m.sub, m.seq, uint32(size), ripe, execAt
	c.Rank, c.Last, c.Pace, c.Demand, c.Least, c.Avoid = rank, m.last, m.pace, demand, least, avoid
}

// withdrawCandidate tells every Ranker that may know of the model that nothing is queued, and the model's demand.
func (p *Partition) withdrawCandidate(m *model) {
	if m.family == nil || len(m.family.homes) == 1 {
		p.offerCandidate(m, 0, false, 0)
		return
	}
	for k := range m.family.homes {
		p.offerTo(m, &m.family.homes[k], 0, false, 0)
	}
}
