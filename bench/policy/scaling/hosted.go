package scaling

import (
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// host is a device with its one hosted variant and the requests bound to it.
type host struct {
	device          int32
	kind            int
	family, variant int32            // -1: it hosts nothing
	profile         *profile.Profile // of the variant on this kind
	planned         int              // the batch size assumed for its capacity
	size            int              // of aimdBatch
	weight, credit  float64          // share of its family's requests, for smooth weighted round-robin
	readyAt         sched.Time       // when its variant is loaded
	queue           backlog
	wake            sched.Time
}

// hosted is the common part of policies in which a device hosts one variant and a request is bound to a device when
// it arrives.
type hosted struct {
	w        *sim.World
	hosts    []host
	demand   *demand
	planner  planner
	batching batching
	loadTime sched.Duration
	uniform  bool // routing ignores the devices' capacities
	training *Training
	tick     sched.Time
	wake     sched.Time
}

// planner chooses the variants that devices host. It is called every second; nil: no change.
type planner interface {
	plan(now sched.Time, p *hosted) []placement
}

// placement is a number of devices of a kind that host a variant, and the requests/s that they should serve.
type placement struct {
	kind            int
	family, variant int32
	devices         int
	rate            float64
}

const tickPeriod = sched.Duration(1e9)

func newHosted(w *sim.World, planner planner, batching batching, loadTime sched.Duration) *hosted {
	p := &hosted{w: w, demand: newDemand(len(w.Models)), planner: planner, batching: batching, loadTime: loadTime, wake: sched.Never}
	for g := range w.GPUs {
		p.hosts = append(p.hosts, host{device: int32(g), kind: w.Kind(int32(g)), family: -1, variant: -1, size: 1, wake: sched.Never})
	}
	return p
}

// Arrive implements sim.Server.
func (p *hosted) Arrive(now sched.Time, r, family int32) {
	p.planSeconds(now)
	p.demand.countRequest(family)

	h := p.route(now, family)
	if h == nil {
		p.w.Drop(r)
		return
	}
	h.queue.Push(r)
	p.startIdle(now, h)
}

// Done implements sim.Server.
func (p *hosted) Done(now sched.Time, device int32) { p.startIdle(now, &p.hosts[device]) }

// NextWake implements sim.Server.
func (p *hosted) NextWake() sched.Time { return min(p.wake, p.tick) }

// Wake implements sim.Server.
func (p *hosted) Wake(now sched.Time) {
	p.planSeconds(now)
	p.wake = sched.Never
	for i := range p.hosts {
		if h := &p.hosts[i]; h.wake <= now {
			p.startIdle(now, h)
		} else {
			p.wake = min(p.wake, h.wake)
		}
	}
}

// planSeconds counts the seconds that have passed and calls the planner after each.
func (p *hosted) planSeconds(now sched.Time) {
	// End every second that has passed, even one without events.
	for p.tick <= now {
		p.demand.endSecond(p.tick)
		if plan := p.planner.plan(p.tick, p); plan != nil {
			p.applyPlan(now, plan)
		}
		p.tick = p.tick.Add(tickPeriod)
	}
}

// route returns the host for the next request of a family: by weight among those whose variant is loaded, else the
// first to be loaded; nil: none hosts the family.
func (p *hosted) route(now sched.Time, family int32) *host {
	var best, first *host
	sum := 0.0

	// Smooth weighted round-robin among the ready hosts.
	for i := range p.hosts {
		h := &p.hosts[i]
		switch {
		case h.family != family:
		case h.readyAt > now:
			if first == nil || h.readyAt < first.readyAt {
				first = h
			}
		default:
			h.credit += h.weight
			sum += h.weight
			if best == nil || h.credit > best.credit {
				best = h
			}
		}
	}

	// While all are loading, requests wait for the first to be ready.
	if best == nil {
		return first
	}

	best.credit -= sum
	return best
}

// startIdle starts a device's next batch if it is idle and its rule says so.
func (p *hosted) startIdle(now sched.Time, h *host) {
	h.wake = sched.Never
	if h.queue.Len() == 0 {
		return
	}

	free := max(p.w.FreeAt(h.device), h.readyAt)
	if free > now {
		return // Done will be called
	}
	h.queue.DropBefore(p.w, now.Add(exec(h.profile, 1)))
	if h.queue.Len() == 0 {
		return
	}

	skip, b, wake := p.batching(p.w, now, h)
	if b == 0 {
		h.wake = wake
		p.wake = min(p.wake, wake)
		p.trainUntil(now, h, wake)
		return
	}
	p.w.StartVariant(now, h.device, h.family, h.variant, h.queue.Cut(skip, b))
}

// trainUntil lets a host train while its queue waits.
func (p *hosted) trainUntil(now sched.Time, h *host, wake sched.Time) {
	if p.training == nil || !p.training.Families[h.family] || wake <= now {
		return
	}
	// Training keeps the GPU until the planned start of the batch, even if requests arrive meanwhile.
	p.training.Took += duration(wake.Sub(now))
	p.w.Load(h.device, wake.Sub(now))
}
