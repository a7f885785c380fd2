package sched

import (
	"math"

	"downbeat.dev/core/limits"
	vocabulary "downbeat.dev/core/model"
)

// refresh looks at a model with something queued whose head is not past: it becomes ripe or the
// timer is set for when it will. frontrun = d − ℓ(n+1) is the moment until which waiting for one
// more request is free (§4.3 and appendix C); the batch must be sent delay(n+1) before.
func (p *Partition) refresh(now Time, m *model, at int32) {
	// A forecast costs a message: without spare work none is made.
	if p.forecasting {
		p.foretell(now, m, at)
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
		p.calm(m, m.queueMax)
		if m.crowded {
			p.calm(m, int32(n+n/newsEvery)) // its rank follows its size
		}

		// From here on the ranker acts; the timer only watches the head's last chance.
		p.timers.arm(at, head-Time(m.soonest)+1)
		p.offer(m, min(n, int(m.max)), true, now)
		return
	}

	if m.state != waiting {
		m.state, m.timer, m.offered = waiting, Never, 0
	}
	// The ranker hears of a waiting candidate when it may be worth a GPU, and then of some
	// arrivals only: it may grant a GPU early by older news, and the grant is declined when the
	// newest say so.
	step := n + 1
	if m.load >= tight {
		step = n / newsEvery
		p.offer(m, n, false, ripeAt)
	} else if p.silent(now, m) || 2*n >= 3*int(m.offered) && m.growth(now) <= p.o.growthMax(m.load) {
		m.offered = int32(n)
		p.offer(m, n, false, ripeAt)
	}
	if ripeAt < m.timer {
		// Growth brings ripeAt forward; a timer set ahead of it stays right until then, and most
		// requests need not look.
		m.timer = ripeAt
		calm := n
		size := min(n+step+1, int(m.max))
		if ahead := head - Time(m.lead[size]+m.margin); ahead > now && ahead < ripeAt {
			m.timer, calm = ahead, size-1
		}
		if p.o.Prompt > 0 {
			m.timer = min(m.timer, now.Add(p.lookAgain(now, m)))
		}
		p.calm(m, int32(calm))
		p.timers.arm(at, m.timer)
	}
}

// calm lets requests join the queue unlooked at while it has fewer than n, and room; none does while no
// GPU serves the model, or while one more may take a GPU that those queued avoid.
func (p *Partition) calm(m *model, n int32) {
	if m.q.calm = min(n, m.queueMax); p.avoids(p.now, m) || p.deserted(m) {
		m.q.calm = 0
	}
}

// newsEvery is how the ranker hears of a waiting candidate when GPUs are scarce: whenever it grew
// by one newsEvery-th.
const newsEvery = 8

// ripeAt returns when waiting stops being free, or margin before; now for a batch that cannot grow, and in a crowd.
func (m *model) ripeAt(now Time) Time {
	if m.q.len() >= int(m.max) || m.crowded {
		return now
	}
	return m.q.first() - Time(m.lead[m.q.len()+1]+m.margin)
}

// growth returns the share by which the candidate is expected to grow until it is ripe.
func (m *model) growth(now Time) float64 { return m.growthUntil(now, m.ripeAt(now)) }

// growthUntil is the same until another time.
func (m *model) growthUntil(now, until Time) float64 {
	return m.pace.growth(now, m.last, until, m.q.len())
}

// settle drops the heads that no batch can meet, and then brings candidate and timer up to date
// whatever was the state.
func (p *Partition) settle(now Time, m *model, at int32) {
	// Heads go first: what is offered must be what can still be met.
	p.expire(now.Add(m.soonest), m)
	had := m.state
	m.state, m.q.calm = none, 0
	if m.q.len() > 0 {
		p.refresh(now, m, at)
		return
	}
	if p.forecasting {
		p.foretell(now, m, at)
	}

	// A ranker that knows of nothing needs no news of nothing.
	if had != none {
		p.withdraw(m)
	} else if m.family != nil && len(m.family.homes) > 1 {
		p.withdrawAll(m)
	}
	p.timers.arm(at, now.Add(p.lookAgain(now, m)))
}

// expire drops the heads whose deadline is before finish, the earliest end of a batch of one.
func (p *Partition) expire(finish Time, m *model) {
	k := 0
	for ; k < m.q.len() && m.q.at(k).Deadline < finish; k++ {
		why := vocabulary.DeadlineCannotBeMet
		if p.deserted(m) {
			why = vocabulary.NoBackend
		}
		p.drop(m.q.at(k), why)
		if m.family != nil && m.family.left.holds(m.q.at(k).Deadline) {
			p.out.Drops[len(p.out.Drops)-1].Rule = LeftBehind
		}
	}
	m.q.pop(k, &m.ranks)

	// Drops raise the model's claim on the next GPU, and make it ask sooner.
	m.owe(0, k)
	m.hurry(0, k)
}

// decay lets the estimated rate of a model without requests fall, and tells the ranker. What memory an
// overload left with its queue goes to others.
func (p *Partition) decay(now Time, m *model, at int32) {
	m.q.shrink(&p.out.memory)

	if m.rate.update(now, m) {
		p.weigh(m, at)
	}

	// The look is repeated until nothing is left to fall.
	if m.rate.demand > 0 && !m.rate.fixed {
		p.timers.arm(at, now.Add(p.lookAgain(now, m)))
	}
	p.withdraw(m)
}

// lookAgain returns when a model that waits or has nothing queued is looked at the next time, though
// no request comes. With Prompt set the end of a burst is to be noticed soon, and then less and
// less often.
func (p *Partition) lookAgain(now Time, m *model) Duration {
	if p.o.Prompt == 0 {
		return decayAfter
	}
	return max(silence, min(now.Sub(m.last), decayAfter))
}

// silent says whether the time since m's last request tells of its rate, which matters with Prompt.
func (p *Partition) silent(now Time, m *model) bool {
	return p.o.Prompt > 0 && !m.rate.fixed && now.Sub(m.last) >= silence
}

// demand returns the model's demand as the ranker is to know it. The estimate of λ outlives a burst
// by seconds; with Prompt set it counts as no more than one request in the time without any.
func (p *Partition) demand(m *model) int64 {
	if !p.silent(p.now, m) {
		return m.rate.demand
	}

	t := m.target
	return min(m.rate.demand, int64(1e6*float64(m.exec[t])/float64(t)/float64(p.now.Sub(m.last))))
}

// silence is how long no request must come before that tells anything.
const silence Duration = 20_000_000

func (p *Partition) offer(m *model, size int, ripe bool, execAt Time) {
	m.seq++

	demand := p.demand(m)
	least := demand
	if m.family != nil {
		least = m.family.homes[0].leastDemand(demand)
	}
	p.out.Candidates = append(p.out.Candidates, Candidate{
		Model: m.id, SubCluster: m.sub, Seq: m.seq, Size: uint32(size), Ripe: ripe, ExecAt: execAt,
		Rank: p.rank(m, size), Last: m.last, Pace: m.pace, Demand: demand, Least: least, Avoid: p.avoided(m),
	})
}

// withdraw tells every Ranker that may know of the model that it has nothing queued, and its demand.
func (p *Partition) withdraw(m *model) {
	if m.family == nil || len(m.family.homes) == 1 {
		p.offer(m, 0, false, 0)
		return
	}
	for k := range m.family.homes {
		p.offerTo(m, &m.family.homes[k], 0, false, 0)
	}
}

// rank orders ripe candidates. A batch that waits past its frontrun loses one request for every
// ℓ(n+1)−ℓ(n), so models with a small slope are served first; by its root, or those with a large
// one would do all the waiting. The debt evens out who suffers, and among equals the model served
// longest ago comes first. Where batching gains nothing that would be unfair to the model that has a
// burst: there the oldest head comes first, and the debt hardly counts.
func (p *Partition) rank(m *model, n int) Time {
	if m.crowded && n > 0 {
		return p.crowdRank(m)
	}
	return m.rankIn(&m.execution, n)
}

// rankIn is rank with an execution that may not be the intended one.
func (m *model) rankIn(x *execution, n int) Time {
	slope := Time(math.Sqrt(slopeUnit * float64(x.exec[n+1]-x.exec[n])))
	if m.single && n > 0 {
		return (m.q.first()-Time(m.slo))/2 + slope + Time(m.debt/16)
	}
	return m.grantAt/2 + slope + Time(m.debt)
}

const slopeUnit = 16 * 15e6 // ns

// owe moves the debt after served requests got a batch and dropped ones did not: it stays where
// it is when debtShare of debtWhole requests are dropped, just under the share that counts as
// keeping an SLO. A drop weighs debtStep of the SLO, and all together at most the SLO, either way.
func (m *model) owe(served, dropped int) {
	// The debt is in parts of the SLO, so that models with short and long ones compare.
	unit := float64(m.slo) * debtStep / debtWhole
	m.debt += Duration(unit * float64(served*debtShare-dropped*(debtWhole-debtShare)))
	m.debt = max(-m.slo, min(m.debt, m.slo))
}

const (
	debtShare = 17
	debtWhole = 2000
	debtStep  = 0.007
)

// hurry moves the margin after requests got a batch or expired, for want of a GPU in time. Between
// its frontrun and its head's last chance a batch of n has n slopes: where that is a millisecond, a
// GPU must be free in that very one, and such a model alone would bound the load. So it asks
// sooner, until the share that expires is hurryShare; but not where a batch of the target size has
// long enough by itself.
func (m *model) hurry(served, expired int) {
	step := float64(m.slo) * hurryStep
	m.margin += Duration(step * (float64(expired) - hurryShare*float64(served)))
	t := m.target

	// The time that a batch of the target size has anyway counts against the margin's bound.
	slopes := Duration(t) * (m.exec[t+1] - m.exec[t])
	m.margin = max(0, min(m.margin, limits.HasteMost(m.slo)-slopes))
}

const (
	hurryStep  = 0.01 // of the SLO, per request
	hurryShare = 0.005
)

// start returns when a batch of b sent now starts on a GPU that is free at freeAt.
func (p *Partition) start(now Time, b int, freeAt Time) Time {
	return max(now.Add(p.o.Ctrl+Duration(b)*p.o.Data), freeAt)
}

// form takes the next batch out of the queue and emits it; 0 when no request can be met. The
// granted GPU is the first to be free, so what it cannot meet alone is dropped. Then pick chooses
// the batch; requests before it are dropped. An early grant that would forgo more growth than it
// allows is declined.
func (p *Partition) form(now Time, m *model, g Grant) bool {
	p.expire(p.start(now, 1, g.FreeAt).Add(m.exec[1]), m)
	if m.q.len() == 0 || g.Early && m.growth(now) > g.Growth {
		return false
	}

	// The budget is sampled before the batch leaves: it reads the last request of the queue.
	m.sample()
	skip, b := p.pick(now, m, &m.execution, 0, g.FreeAt, g.Load)
	p.dropHeads(m, skip)
	p.emit(now, m, &m.execution, g, 0, b, skip)
	return true
}

// dropHeads drops the requests that a window slid past.
func (p *Partition) dropHeads(m *model, n int) {
	for i := range n {
		p.drop(m.q.at(i), vocabulary.DeadlineCannotBeMet)
		p.out.Drops[len(p.out.Drops)-1].Rule = Windowed
	}
	m.q.pop(n, &m.ranks)
}

// emit takes b requests from place first on out of the queue and orders their execution as x on the granted
// GPU; skipped are those that were dropped for them.
func (p *Partition) emit(now Time, m *model, x *execution, g Grant, first, b, skipped int) {
	head := m.q.at(first).Deadline
	if g.Trial {
		b = min(b, 1)
	}

	// Requests served raise the debt; those that were dropped for them lower it.
	m.owe(b, skipped)
	m.hurry(b, 0)
	p.batch++
	p.stats.Batches++
	p.stats.Batched += uint64(b)

	start := p.start(now, b, g.FreeAt)
	// In place: a literal would be put together on the stack, and copying it from there would wait for
	// its stores, behind all those of take.
	p.out.Batches = append(p.out.Batches, Batch{})
	o := &p.out.Batches[len(p.out.Batches)-1]
	o.ID, o.Model, o.Variant, o.GPU, o.Epoch = p.batch, m.id, x.variant, g.GPU, g.Epoch
	o.ExecAt, o.Latest, o.Finish = start, head-Time(x.exec[b]), start.Add(x.exec[b])
	if first == 0 {
		o.Requests, o.piece = p.take(m, b)
		return
	}

	// Those before stay queued, so that the queue cannot hand its memory over.
	o.piece = p.out.memory.take(b)
	o.Requests = m.q.takeFrom(first, b, o.piece[:0], &m.ranks)
}

// take removes the next b requests from a model's queue and returns them with the memory that they lie
// in. As long as the queues stay in a core's cache they are copied out, since a queue that got another
// piece would write to memory that is far. Beyond that the queue hands its own over.
func (p *Partition) take(m *model, b int) (batch, piece []Request) {
	q, mem := &m.q, &p.out.memory

	// Priorities choose among the requests only where they differ and not all go.
	if b < q.len() && !m.ranks.uniform(q.len()) {
		piece = mem.take(b)
		return q.choose(b, piece[:0], &m.ranks), piece
	}
	if !p.Far() || q.len() > 2*b || len(q.buf) > 4*max(b, pieceMin) {
		piece = mem.take(b)
		batch = piece[:copy(piece[:b], q.buf[q.head:])]
		q.pop(b, &m.ranks)
		return batch, piece
	}

	// The batch keeps the queue's memory, and the queue moves to another piece.
	batch, piece = q.buf[q.head:][:b:b], q.buf
	q.pop(b, &m.ranks)
	q.move(mem.take(len(piece)))
	return batch, piece
}
