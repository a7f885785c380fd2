package sim

import (
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// arrivals starts a frontend's calls: bursts at exponential gaps, at a mean rate in requests/s.
func (c *Cluster) arrivals(f *front, rate float64, end Time) {
	// A burst has (Burst + 1) / 2 requests on average, so the gaps, in ns, are longer by that factor.
	mean := float64(c.o.Burst+1) / 2 / rate * 1e9
	c.after(Duration(c.load.ExpFloat64()*mean), func() {
		if f.gone || c.now > end {
			return
		}
		f.submitBurst(1 + c.load.IntN(c.o.Burst))
		c.arrivals(f, rate, end)
	})
}

// submitBurst makes n calls and submits them at once.
func (f *front) submitBurst(n int) {
	c, s := f.c, f.session()
	from, last := len(f.calls), c.now

	var m []wire.Submit
	for range n {
		// As in the real frontend, an id is not used while its window entry belongs to a call that has not ended.
		if f.full() {
			break
		}

		if c.load.Float64() < c.o.Junk {
			m = append(m, f.junk())
			continue
		}

		k := c.pickModel()
		asks := c.drawAsk()
		if s != nil && !s.knows(k, asks) {
			continue
		}

		budget := c.models[k].slo
		if c.load.Float64() < c.o.ShortBudgets {
			budget = Duration(c.load.Int64N(int64(2 * budget)))
		}

		x := call{deadline: c.now.Add(budget), model: k, asks: asks, live: true}
		if c.o.Priorities && c.load.IntN(4) == 0 {
			x.priority = uint8(c.load.IntN(256))
		}
		id := f.addCall(x)
		last = max(last, x.deadline)
		if s == nil {
			continue
		}
		if _, ok := s.namedService(k, asks); !ok {
			f.endTooHigh(id)
			continue
		}
		m = append(m, f.message(s, id))
	}

	if len(m) > 0 && s != nil {
		f.submit(s, m)
	}

	if len(f.calls) > from {
		f.expire(from, len(f.calls), last)
	}
}

// full reports whether the window entry of the next id belongs to a call that has not ended.
func (f *front) full() bool {
	before := len(f.calls) - int(f.c.window())
	return before >= 0 && f.calls[before].live
}

// window returns the size of a frontend's id window.
func (c *Cluster) window() uint32 {
	if c.o.Window > 0 {
		return c.o.Window
	}

	return 1 << 14
}

// addCall counts a call and returns its id.
func (f *front) addCall(x call) uint64 {
	c := f.c
	f.calls = append(f.calls, x)
	id := uint64(len(f.calls))
	c.report.Calls++
	if c.chance(c.o.Cancels) {
		c.after(c.within(0, x.deadline.Sub(c.now)), func() {
			if f.calls[id-1].live {
				f.endCall(id, model.Canceled, true)
				f.cancel(id)
			}
		})
	}

	return id
}

// expire ends the calls of a burst that nobody answered, after the grace of the last one.
func (f *front) expire(from, to int, last Time) {
	c := f.c

	// The grace starts at the latest deadline of the burst and allows for two round trips.
	c.at(last.Add(grace+4*(c.o.Delay+c.o.Vary)), func() {
		for i := from; i < to; i++ {
			if f.calls[i].live {
				f.endCall(uint64(i+1), f.calls[i].whyExpired(), true)
				f.cancel(uint64(i + 1))
			} else if f.calls[i].deadline == 0 { // invalid
				f.cancel(uint64(i + 1))
			}
		}
	})
}

// junk returns an invalid Submit. No call will have its id.
func (f *front) junk() wire.Submit {
	// Take an id as calls do, so that no later call is mistaken for this one.
	r := f.c.load
	f.calls = append(f.calls, call{})
	m := wire.Submit{ID: uint64(len(f.calls)), Model: r.Uint32(), Budget: int64(r.Uint64())}
	switch r.IntN(3) {
	case 0:
		m.Model = uint32(r.IntN(len(f.c.models) + 2))
	case 1:
		m.Budget = int64(f.c.models[0].slo)
	}
	f.calls[m.ID-1].junk = m.Model
	return m
}
