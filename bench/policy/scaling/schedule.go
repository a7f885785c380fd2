package scaling

import (
	"math"

	"downbeat.dev/core/sched"
)

// slot is a device and when it is free in the tentative schedule.
type slot struct {
	device int32
	free   sched.Time
}

// schedule places what is queued in a tentative schedule, the family whose head must start first before
// the others, and starts what is to start now. So a batch takes a lighter variant or another kind as soon as
// those before it leave too little of what it would rather have, not when its deadline forces it to. What
// is not started now is placed anew next time.
func (p *pooled) schedule(now sched.Time) {
	for kind, devices := range p.devices {
		p.slots[kind] = p.slots[kind][:0]
		for _, g := range devices {
			p.slots[kind] = append(p.slots[kind], slot{g, max(now, p.w.FreeAt(g))})
		}
	}

	for f := range p.families {
		p.families[f].placed = 0
	}

	// Requests are placed in the order of urgency until no idle device is left; what is placed on a busy one holds
	// its time.
	for p.someIdle(now) {
		family := p.mostUrgent()
		if family < 0 {
			return
		}
		p.placeFamily(now, family)
	}
}

// someIdle reports whether any device could start something now.
func (p *pooled) someIdle(now sched.Time) bool {
	for kind := range p.slots {
		for _, s := range p.slots[kind] {
			if s.free <= now {
				return true
			}
		}
	}
	return false
}

// mostUrgent returns the family whose next request has the earliest last start with the variant that the
// plan prefers; -1: everything has a place.
func (p *pooled) mostUrgent() int {
	best, at := -1, sched.Never
	for i := range p.families {
		f := &p.families[i]
		if f.placed == f.queue.Len() {
			continue
		}
		if last := p.w.Deadline(f.queue.At(f.placed)) - sched.Time(f.preferred); last < at {
			best, at = i, last
		}
	}
	return best
}

// placeFamily gives the family's next requests the best place that there is, and starts them if that is now.
func (p *pooled) placeFamily(now sched.Time, family int) {
	f := &p.families[family]

	o, b, s := p.bestPlace(now, f)
	if o == nil {
		f.placed++ // nothing can serve this request: it is dropped when its time has come
		return
	}

	if s.free > now {
		s.free = s.free.Add(exec(o.profile, b))
		f.placed += b
		return
	}

	if ripe := p.ripeAt(f, o, b); ripe > now {
		p.wake = min(p.wake, ripe)
		s.free = ripe.Add(exec(o.profile, b))
		f.placed += b
		return
	}

	p.w.StartVariant(now, s.device, int32(family), o.variant, f.queue.Cut(f.placed, b))
	s.free = p.w.FreeAt(s.device)
}

// bestPlace returns the offer, the batch and the device whose gain per request is greatest: what an answer of
// this accuracy is worth beyond what the family's requests are worth elsewhere, less the price of the device's
// time and of the wait (UNIFIED U4 with the value of what stays queued). nil: no deadline can be met.
func (p *pooled) bestPlace(now sched.Time, f *pool) (best *offer, size int, place *slot) {
	most := math.Inf(-1)
	for i := range f.offers {
		o := &f.offers[i]
		s := p.firstFree(o.kind)
		b := f.queue.fitBatch(p.w, o.profile, f.placed, s.free)
		if b == 0 {
			continue
		}

		// The gain of an answer here over that of the family's best option, less the wait.
		answer := p.market.Value + o.accuracy - f.value
		gain := answer - p.prices.Price[o.kind]*o.profile.Exec(b).Seconds()/float64(b) - delayPrice*float64(s.free.Sub(now))/1e9
		if gain > most {
			best, size, place, most = o, b, s, gain
		}
	}
	return best, size, place
}

// firstFree returns the slot of a kind that is free first, the lowest device of those.
func (p *pooled) firstFree(kind int) *slot {
	best := &p.slots[kind][0]
	for i := range p.slots[kind] {
		if s := &p.slots[kind][i]; s.free < best.free {
			best = s
		}
	}
	return best
}

// ripeAt returns until when waiting for one request more is free and worth it: zero if the batch is as large
// as it can be, cannot use another, or is as cheap as planned.
func (p *pooled) ripeAt(f *pool, o *offer, b int) sched.Time {
	if b == o.profile.Max() || f.placed+b < f.queue.Len() || o.profile.Exec(b).Seconds()/float64(b) <= gainMin*o.cost {
		return 0
	}
	return p.w.Deadline(f.queue.At(f.placed)) - sched.Time(exec(o.profile, b+1))
}
