package swarm

import (
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// scheduleArrivals starts a frontend's calls: bursts at exponential gaps, at a mean rate in requests/s.
func (c *Cluster) scheduleArrivals(f *front, rate float64, end Time) {
	// A burst has (Burst + 1) / 2 requests on average, so the gaps, in ns, are longer by that factor.
	mean := float64(c.o.Burst+1) / 2 / rate * 1e9
	c.after(Duration(c.load.ExpFloat64()*mean), func() {
		if f.dead || c.now > end {
			return
		}
		f.submitBurst(1 + c.load.IntN(c.o.Burst))
		c.scheduleArrivals(f, rate, end)
	})
}

// submitBurst makes n calls and submits them at once.
func (f *front) submitBurst(n int) {
	c, s := f.c, f.obeyedSession()
	first, last := len(f.calls), c.now

	var burst []wire.Submit
	for range n {
		// As in the real frontend, an id is not used while its window entry belongs to a call that has not ended.
		if f.isWindowFull() {
			break
		}

		if c.load.Float64() < c.o.Junk {
			burst = append(burst, f.newInvalidSubmit())
			continue
		}

		// Programs call only what their frontend knows. Without a scheduler they call, too: the calls wait for one.
		k := c.pickModel()
		asks := c.drawAsk()
		if s != nil && !s.hasAnnounced(k, asks) {
			continue
		}

		x := c.drawCall(k, asks)
		f.drawHook(&x)
		id := f.addCall(x)
		f.scheduleHook(id)
		last = max(last, x.deadline)
		if s == nil {
			continue
		}

		// The frontend itself refuses a floor that no variant reaches.
		if _, ok := s.namedService(k, asks); !ok {
			f.endTooHigh(id)
			continue
		}
		burst = append(burst, f.newSubmit(s, id))
	}

	if len(burst) > 0 && s != nil {
		f.submit(s, burst)
	}
	if len(f.calls) > first {
		f.scheduleExpiry(first, len(f.calls), last)
	}
}

// drawCall draws the deadline and the priority of a call for a target.
func (c *Cluster) drawCall(k int, asks ask) call {
	// A budget of the call's own is up to twice the SLO, and may be too short for any batch.
	budget := c.models[k].slo
	if c.load.Float64() < c.o.ShortBudgets {
		budget = Duration(c.load.Int64N(int64(2 * budget)))
	}

	x := call{deadline: c.now.Add(budget), model: k, asks: asks, live: true}
	if c.o.Priorities && c.load.IntN(4) == 0 {
		x.priority = uint8(c.load.IntN(256))
	}
	return x
}

// isWindowFull reports whether the next id would overwrite the window entry of a call that has not ended.
func (f *front) isWindowFull() bool {
	before := len(f.calls) - int(f.c.windowSize())
	return before >= 0 && f.calls[before].live
}

// windowSize returns the size of a frontend's id window.
func (c *Cluster) windowSize() uint32 {
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

	// Some callers give up before the deadline.
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

// scheduleExpiry ends the calls of a burst that nobody answered, after the grace of the last one.
func (f *front) scheduleExpiry(from, to int, last Time) {
	c := f.c

	// The grace starts at the latest deadline of the burst and allows for two round trips.
	c.at(last.Add(grace+4*(c.o.Delay+c.o.Vary)), func() {
		for i := from; i < to; i++ {
			if f.calls[i].live {
				f.endCall(uint64(i+1), f.calls[i].whyExpired(), true)
				f.cancel(uint64(i + 1))
			} else if f.calls[i].deadline == 0 {
				f.cancel(uint64(i + 1)) // an invalid Submit: the engine may have taken it
			}
		}
	})
}

// newInvalidSubmit returns an invalid Submit. No call will have its id.
func (f *front) newInvalidSubmit() wire.Submit {
	// Take an id as calls do, so that no later call is mistaken for this one.
	r := f.c.load
	f.calls = append(f.calls, call{})
	m := wire.Submit{ID: uint64(len(f.calls)), Model: r.Uint32(), Budget: int64(r.Uint64())}

	// With one valid field, the engine gets past its check and must refuse the other.
	switch r.IntN(3) {
	case 0:
		m.Model = uint32(r.IntN(len(f.c.models) + 2))
	case 1:
		m.Budget = int64(f.c.models[0].slo)
	}

	f.calls[m.ID-1].junk = m.Model
	return m
}
