package policy

import (
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// device is one GPU of a partitioned policy.
type device struct {
	node
	gpu    int32
	queues []fifo // by session
	cap    []float64
	turn   int
	queued int
	wake   sched.Time
}

// partitioned is the common part of policies that bind models to GPUs for an epoch. Frontends distribute requests
// over a model's GPUs, each by its own weighted round-robin, and each GPU decides alone.
type partitioned struct {
	w         *sim.World
	devices   []device
	routes    [][]route // by model
	frontends uint64
	leadMax   sched.Duration
	wake      sched.Time
	// next chooses the batch of a device that is free at freeAt: session k's requests skip to skip+b; requests before
	// them were dropped or stay. b = 0: nothing before wake.
	next func(now, freeAt sched.Time, d *device) (k, skip, b int, wake sched.Time)
	// sent, if set, is called for every batch before its requests leave the queue.
	sent func(d *device, k, skip, b int, start sched.Time)
}

// route is a GPU that serves a model; credit is per frontend.
type route struct {
	device, session int
	rate            float64
	credit          []float64
}

func newPartitioned(w *sim.World, frontends int, nodes []node) *partitioned {
	p := &partitioned{w: w, routes: make([][]route, len(w.Models)), frontends: uint64(frontends), wake: sched.Never}
	for i, n := range nodes {
		d := device{node: n, gpu: int32(i), queues: make([]fifo, len(n.sessions)), cap: make([]float64, len(n.sessions)), wake: sched.Never}
		for k, s := range n.sessions {
			// The limit starts at one; only an adaptive policy uses it.
			d.cap[k] = 1
			r := route{device: i, session: k, rate: s.rate, credit: make([]float64, frontends)}
			for f := range r.credit { // frontends start their rounds at different GPUs
				r.credit[f] = s.rate * float64(scatterBits(uint64(i*frontends+f))%1000) / 1000
			}
			p.routes[s.model] = append(p.routes[s.model], r)
		}
		p.devices = append(p.devices, d)
	}

	for _, m := range w.Models {
		p.leadMax = max(p.leadMax, w.Lead(m.Profile.Max()))
	}
	return p
}

// scatterBits is splitmix64: the frontend of a request must not follow the request's order.
func scatterBits(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Arrive routes by smooth weighted round-robin.
func (p *partitioned) Arrive(now sched.Time, r int32, m int32) {
	routes := p.routes[m]
	if len(routes) == 0 { // the plan found no GPU with room for it
		p.w.Drop(r)
		return
	}

	// Weighted round-robin by rate. Each frontend has its own credits, since frontends do not communicate.
	f := scatterBits(uint64(r)) % p.frontends
	best, sum := 0, 0.0
	for i := range routes {
		routes[i].credit[f] += routes[i].rate
		sum += routes[i].rate
		if routes[i].credit[f] > routes[best].credit[f] {
			best = i
		}
	}
	routes[best].credit[f] -= sum

	d := &p.devices[routes[best].device]
	d.queues[routes[best].session].Push(r)
	d.queued++
	p.serveDevice(now, d)
}

func (p *partitioned) Done(now sched.Time, gpu int32) {}

func (p *partitioned) NextWake() sched.Time { return p.wake }

func (p *partitioned) Wake(now sched.Time) {
	for i := range p.devices {
		if p.devices[i].wake <= now {
			p.serveDevice(now, &p.devices[i])
		}
	}

	p.wake = sched.Never
	for i := range p.devices {
		p.wake = min(p.wake, p.devices[i].wake)
	}
}

// serveDevice lets a device decide. Afterwards its wake is set, and the policy's is not later.
func (p *partitioned) serveDevice(now sched.Time, d *device) {
	for p.startBatch(now, d) {
	}
	p.wake = min(p.wake, d.wake)
}

// startBatch starts at most one batch; false: the device waits until its wake.
func (p *partitioned) startBatch(now sched.Time, d *device) bool {
	d.wake = sched.Never
	if d.queued == 0 {
		return false
	}

	f := p.w.FreeAt(d.gpu)
	if at := f - sched.Time(p.leadMax); at > now {
		d.wake = at
		return false
	}

	f = max(f, now)
	k, skip, b, wake := p.next(now, f, d)
	if b == 0 {
		d.wake = wake
		return false
	}

	if at := f - sched.Time(p.w.Lead(b)); at > now {
		d.wake = at
		return false
	}

	start := max(f, now.Add(p.w.Lead(b)))
	if p.sent != nil {
		p.sent(d, k, skip, b, start)
	}

	d.queued -= b
	p.w.Start(start, d.gpu, d.sessions[k].model, d.queues[k].Cut(skip, b))
	d.turn = k + 1
	return true
}

// pruneHeads drops session k's first requests that even a batch of one cannot serve in time; false: the queue is
// empty.
func (p *partitioned) pruneHeads(now, freeAt sched.Time, d *device, k int) bool {
	q, m := &d.queues[k], d.sessions[k].model
	n := q.Len()
	q.DropBefore(p.w, max(now.Add(p.w.Lead(1)), freeAt).Add(execTime(p.w, m, 1)))
	d.queued -= n - q.Len()
	return q.Len() > 0
}
