package sim

import (
	"fmt"

	"downbeat.dev/core/engine"
	vocabulary "downbeat.dev/core/model"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
)

// Downbeat runs core/sched as the Server of a World. In a World with families it renews the prices of GPU time every
// plan.PricePeriod, as core/engine does.
type Downbeat struct {
	// Refused, if set, is called for every request of a batch that is sent. If it returns true, the backend cannot read
	// the request's input: its row stays empty, and the caller brings the request back.
	Refused func(r int32) bool

	w    *World
	s    *sched.Scheduler
	sent [][]sched.BatchID // per GPU, oldest first: the next batch may be sent at the moment at which the last one ends
	ids  []int32

	pricer   *plan.Pricer // nil: no families, so no prices
	renewals int
	renewAt  Time
	gpus     []int      // by kind
	busy     []Duration // by kind: GPU time used until the latest renewal
	homes    []plan.PricedHome
	bid      sched.Bid
	recently plan.RecentEnds
	running  []sched.SpareStep // by GPU: its latest step
}

// NewDownbeat creates a scheduler for w. Each kind of w's GPUs becomes a sub-cluster.
func NewDownbeat(w *World) *Downbeat {
	d := &Downbeat{w: w, s: sched.New(sched.Options{Ctrl: w.Ctrl, Data: w.Data}), sent: make([][]sched.BatchID, w.GPUs), renewAt: sched.Never}

	for g := range w.GPUs {
		for len(d.gpus) <= w.Kind(int32(g)) {
			d.gpus, d.busy = append(d.gpus, 0), append(d.busy, 0)
		}
		d.gpus[w.Kind(int32(g))]++
	}

	for i := range w.Models {
		m := &w.Models[i]
		if m.Variants == nil {
			must(d.s.AddModel(0, sched.ModelID(i), sched.Model{Profile: m.Profile, SLO: m.SLO, SubCluster: m.SubCluster, Rate: m.Rate}))
			continue
		}
		must(d.s.AddService(0, sched.ModelID(i), m.describeService(len(d.gpus))))

		// Only families choose between variants by cost, so only they need prices.
		if d.pricer == nil {
			d.pricer, d.renewAt = plan.NewPricer(sched.Stepped), 0
		}
	}

	for g := range w.GPUs {
		must(d.s.AddGPU(0, sched.GPUID(g), uint32(w.Kind(int32(g)))))
	}
	return d
}

// describeService returns a family as core/sched describes it, with one home per kind of GPU. It leaves out variants
// that are too slow for the SLO.
func (m *Model) describeService(kinds int) sched.Service {
	s := sched.Service{SLO: m.SLO, Rate: m.Rate, Floor: m.Floor}
	for k := range kinds {
		s.Homes = append(s.Homes, uint32(k))
	}
	for i := range m.Variants {
		v := sched.Variant{Accuracy: m.Variants[i].Accuracy, Profiles: make([]*profile.Profile, kinds)}
		for k := range kinds {
			if p := m.Variants[i].Profiles[k]; p != nil && Duration(p.Exec(1)) <= m.SLO {
				v.Profiles[k] = p
			}
		}
		s.Variants = append(s.Variants, v)
	}
	return s
}

// Scheduler returns the scheduler, so that the caller can read its signals.
func (d *Downbeat) Scheduler() *sched.Scheduler { return d.s }

// Prices returns the prices of GPU time by kind at the latest renewal; nil in a World without families.
func (d *Downbeat) Prices() []plan.PricedHome { return d.homes }

// Arrive implements Server. All requests of one moment are queued before a batch is formed.
func (d *Downbeat) Arrive(now Time, r int32, model int32) {
	// Join does not plan yet: Wake plans after all arrivals of this moment.
	why := d.s.Join(now, sched.Request{ID: sched.RequestID(r), Model: sched.ModelID(model), Deadline: d.w.Deadline(r)})
	if why != vocabulary.ReasonNone {
		d.recently.Bad++
		d.w.Drop(r)
	}
}

// ArriveEarly is Arrive for a request that may be in a batch sent at from or later.
func (d *Downbeat) ArriveEarly(now Time, r, model int32, from Time) {
	why := d.s.JoinEarly(now, sched.Request{ID: sched.RequestID(r), Model: sched.ModelID(model), Deadline: d.w.Deadline(r)}, from)
	if why != vocabulary.ReasonNone {
		d.recently.Bad++
		d.w.Drop(r)
	}
}

// Hasten tells that an early request's input is there.
func (d *Downbeat) Hasten(now Time, r, model int32) {
	d.s.Hasten(now, sched.ModelID(model), sched.RequestID(r), 0)
	d.takeActions()
}

// Cancel removes a request from its queue, and returns false if it runs or has ended. The caller ends the request.
func (d *Downbeat) Cancel(now Time, r, model int32) bool {
	ok := d.s.Cancel(now, sched.ModelID(model), sched.RequestID(r), 0)
	d.takeActions()
	return ok
}

// Done implements Server.
func (d *Downbeat) Done(now Time, gpu int32) {
	sent := d.sent[gpu]
	must(d.s.Complete(now, sent[0], sched.GPUID(gpu), now))
	d.sent[gpu] = append(sent[:0], sent[1:]...)
	d.takeActions()
}

// Wake implements Server.
func (d *Downbeat) Wake(now Time) {
	// Offer spare work at the first turn: before Run, the World has no steps to start.
	if d.running == nil && len(d.w.Learners) > 0 {
		d.offerSpare(now)
	}
	if now >= d.renewAt {
		d.renewPrices(now)
		d.renewAt = now.Add(Duration(plan.PricePeriod))
	}
	d.s.Advance(now)
	d.takeActions()
}

// NextWake implements Server.
func (d *Downbeat) NextWake() Time {
	if d.running == nil && len(d.w.Learners) > 0 {
		return 0
	}
	return min(d.renewAt, d.s.NextWake())
}

// renewPrices computes the prices of GPU time.
func (d *Downbeat) renewPrices(now Time) {
	d.recently.Fade(plan.PricePeriod)
	d.homes = d.describeHomes(now)
	must(d.pricer.Begin(d.homes))

	// Each service bids for GPU time; from all bids the pricer computes a price for every home.
	for i := range d.w.Models {
		d.s.Bid(now, sched.ModelID(i), &d.bid)
		engine.AddBid(d.pricer, &d.bid)
	}

	homes, err := d.pricer.Renew(plan.PricePeriod)
	must(err)
	d.homes = append(d.homes[:0], homes...)

	// If the load of all services stepped up or down at once, their rates follow together.
	if by := d.pricer.Scale(); by != 1 {
		d.s.ScaleRates(by)
	}
	for _, h := range d.homes {
		d.s.SetPrice(h.SubCluster, h.Price, h.Usual)
	}
	d.renewals++
}

// describeHomes returns the load of each kind of GPU since the latest renewal, in the memory of the previous answer. A
// kind without GPUs in the World has no price.
func (d *Downbeat) describeHomes(now Time) []plan.PricedHome {
	learning := 0.0
	if len(d.w.Learners) > 0 {
		learning = d.w.LearnShare
	}

	homes := d.homes[:0]
	for k, n := range d.gpus {
		if n == 0 {
			continue
		}
		busy := d.s.Load(uint32(k)).Busy
		committed := d.s.CommittedTime(now, uint32(k), Duration(plan.PriceHorizon))
		homes = append(homes, plan.PricedHome{SubCluster: uint32(k), GPUs: n, BadShare: d.recently.BadShare(), Learning: learning,
			Committed: float64(committed) / float64(plan.PriceHorizon),
			BusyShare: float64(busy-d.busy[k]) / float64(n) / float64(plan.PricePeriod)})
		d.busy[k] = busy
	}
	return homes
}

// Renewals returns how often prices were renewed.
func (d *Downbeat) Renewals() int { return d.renewals }

// takeActions starts the batches, ends the requests and starts the steps that the scheduler has decided on.
func (d *Downbeat) takeActions() {
	batches, drops := d.s.Actions()
	for i := range batches {
		b := &batches[i]
		d.ids = d.ids[:0]
		for k := range b.Requests {
			if id := int32(b.Requests[k].ID); d.Refused == nil || !d.Refused(id) {
				d.ids = append(d.ids, id)
			}
		}

		// The scheduler forms only batches that meet their deadlines, so their requests count as good when they start.
		d.sent[b.GPU] = append(d.sent[b.GPU], b.ID)
		d.recently.Good += float64(len(d.ids))
		if len(d.ids) == 0 { // the GPU is free again at once
			d.w.Load(int32(b.GPU), 1)
		} else if d.w.Models[b.Model].Variants == nil {
			d.w.Start(b.ExecAt, int32(b.GPU), int32(b.Model), d.ids)
		} else {
			d.w.StartVariant(b.ExecAt, int32(b.GPU), int32(b.Model), int32(b.Variant), d.ids)
		}
	}

	d.recently.Bad += float64(len(drops))
	for _, x := range drops {
		d.w.Drop(int32(x.ID))
	}

	if d.running != nil {
		d.startSteps()
	}
}

func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("sim: %v", err))
	}
}
