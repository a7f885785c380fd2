package sched

import "math"

// Forecast tells a Ranker with spare work when a model may want GPUs. Partition → Ranker. A Partition sends forecasts
// only while Forecasts is on; Rankers without spare work ignore them.
type Forecast struct {
	Model      ModelID
	SubCluster uint32
	Seq        uint64   // grows with each forecast of the model; older ones are ignored
	Due        Time     // the latest time to send the queued requests, if a burst joins them; Never: nothing is queued
	Gap        Duration // the same after the first arrival, for a batch whose requests all arrive later
	Window     Duration // how long before that it may take a GPU
	Period     Duration // the time between its batches at the estimated rate
	Notice     Duration // the shortest such time for a pair of requests, without a burst: B − ℓ(2) − delay
	Gone       bool     // the model was removed, or has moved to another sub-cluster
}

// lastForecast is the latest forecast of a model.
type lastForecast struct {
	due  Time
	sent bool // no grant since then
}

// forecastStep is the least change of a forecast that is worth a message: less than any step of spare work.
const forecastStep Duration = 50_000

// SetForecasts switches forecasts on, which sends one for every model, or off.
func (p *Partition) SetForecasts(now Time, on bool) {
	now = p.clock(now)
	p.forecasting = on
	for i := range p.models {
		if m := &p.models[i]; on && m.live {
			p.expectAgain(int32(i))
			p.sendForecast(now, m, int32(i))
		}
	}
}

// expectAgain makes the next forecast of a model a message, whatever its values.
func (p *Partition) expectAgain(at int32) {
	if int(at) < len(p.lastForecasts) {
		p.lastForecasts[at].sent = false
	}
}

// sendForecast sends a model's forecast to its Rankers if it has changed.
func (p *Partition) sendForecast(now Time, m *model, at int32) {
	for int(at) >= len(p.lastForecasts) {
		p.lastForecasts = append(p.lastForecasts, lastForecast{})
	}

	// When a timer checks a queue that has not grown, nothing is new: the expected burst did not arrive.
	t := &p.lastForecasts[at]
	due, _ := m.due(now, &m.execution, p.burst())
	if apart := max(due, t.due) - min(due, t.due); t.sent && apart < Time(forecastStep) {
		return
	}

	t.due, t.sent = due, true
	if m.family == nil {
		p.sendForecastTo(now, m, m.sub, &m.execution)
		return
	}

	// A home without GPUs has no time for spare work.
	for k := range m.family.homes {
		if h := &m.family.homes[k]; h.hasGPUs {
			p.sendForecastTo(now, m, h.sub, &h.intention().execution)
		}
	}
}

// sendForecastTo sends the forecast for one sub-cluster, where x is how the model executes.
func (p *Partition) sendForecastTo(now Time, m *model, sub uint32, x *execution) {
	p.forecastSeq++
	two := min(2, int(x.max))
	wide := p.burst()

	// Future requests count like queued ones: each may want a GPU during a step.
	gap, window := m.dueOf(x, 0, m.budget, wide)
	due, ofQueue := m.due(now, x, wide)
	if due != Never {
		window = ofQueue
	}
	p.out.Forecasts = append(p.out.Forecasts, Forecast{
		Model: m.id, SubCluster: sub, Seq: p.forecastSeq, Due: due,
		Gap: gap, Window: window, Period: m.period(), Notice: max(0, m.budget-x.lead[two]),
	})
}

// period returns the time in which the requests of a target batch arrive.
func (m *model) period() Duration {
	if m.rate.perNS <= 0 {
		return m.slo
	}
	return Duration(min(float64(SLOLimit), float64(m.target)/m.rate.perNS))
}

// due returns the latest time to send the queued requests if a burst joins them, and how long before that they may
// take a GPU.
func (m *model) due(now Time, x *execution, wide float64) (Time, Duration) {
	if m.q.len() == 0 {
		return Never, 0
	}
	left, window := m.dueOf(x, min(m.q.len(), int(x.max)), m.q.first().Sub(now), wide)
	return now.Add(left), window
}

// dueOf returns how soon a batch must be sent whose head has left until its deadline and which has n requests: the
// least time in which a burst makes it so large that it cannot be sent later. It also returns how long before that
// the batch may take a GPU.
func (m *model) dueOf(x *execution, n int, left Duration, wide float64) (due, window Duration) {
	least := max(1, n)

	// Without a rate no burst can be predicted: queued requests may become more at once, and an empty queue has the
	// whole budget.
	switch {
	case m.rate.perNS > 0:
	case n > 0:
		return 0, 0 // nothing is known about future requests
	default:
		due = max(0, left-x.lead[least])
		return due, due
	}

	// The larger the batch, the sooner it must be sent, and the longer its requests take to arrive. The batch is due
	// where these times meet.
	lo, hi := least, int(x.max)+1 // the first size that takes longer to gather than it has
	for lo < hi {
		b := (lo + hi) / 2
		if b > int(x.max) || m.burstTime(b-n, wide) >= left-x.lead[b] {
			hi = b
		} else {
			lo = b + 1
		}
	}

	due = left
	if lo <= int(x.max) {
		due = max(m.burstTime(lo-n, wide), left-x.lead[lo])
	}
	if lo > least {
		lo--
		due = min(due, left-x.lead[lo])
	}

	// The batch may take a GPU when one more request would be too late, and early when it hardly grows any more.
	lo = min(lo, int(x.max))
	window = x.lead[lo+1] - x.lead[lo] + m.margin + Duration(growthBase*float64(lo)/m.rate.perNS)
	return max(0, due), window
}

// burstTime returns the time in which k requests arrive in a burst at the estimated rate: the time t whose mean count
// μ solves μ + wide·√μ = k.
func (m *model) burstTime(k int, wide float64) Duration {
	root := (math.Sqrt(wide*wide+4*float64(k)) - wide) / 2
	return Duration(root * root / m.rate.perNS)
}

// burst returns how much larger than usual a burst is, in standard deviations of Poisson arrivals. Among many models
// bursts even out: all would have to arrive at once to take the GPUs that are left for any.
func (p *Partition) burst() float64 {
	return burstWidth / math.Sqrt(float64(max(1, len(p.models)-len(p.free))))
}

// burstWidth is the width for a single model; decision 0150 has the costs and gains of others.
const burstWidth = 0.75
