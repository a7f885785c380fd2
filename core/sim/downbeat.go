package sim

import (
	"fmt"

	"downbeat.dev/core/sched"
)

// Downbeat is core/sched as a Server of a World.
type Downbeat struct {
	w    *World
	s    *sched.Scheduler
	sent [][]sched.BatchID // per GPU, oldest first: the next may be sent in the moment the last ends
	ids  []int32
}

// NewDownbeat puts the scheduler in charge of w.
func NewDownbeat(w *World) *Downbeat {
	d := &Downbeat{w: w, s: sched.New(sched.Options{Ctrl: w.Ctrl, Data: w.Data}), sent: make([][]sched.BatchID, w.GPUs)}
	for i, m := range w.Models {
		must(d.s.AddModel(0, sched.ModelID(i), sched.Model{Profile: m.Profile, SLO: m.SLO, Rate: m.Rate}))
	}
	for g := range w.GPUs {
		must(d.s.AddGPU(0, sched.GPUID(g), 0))
	}
	return d
}

// Scheduler returns the scheduler, for its signals.
func (d *Downbeat) Scheduler() *sched.Scheduler { return d.s }

// Arrive implements Server. Requests of one moment are all queued before any of them leaves.
func (d *Downbeat) Arrive(now Time, r int32, model int32) {
	why := d.s.Join(now, sched.Request{ID: sched.RequestID(r), Model: sched.ModelID(model), Deadline: d.w.Deadline(r)})
	if why != sched.ReasonNone {
		d.w.Drop(r)
	}
}

// Done implements Server.
func (d *Downbeat) Done(now Time, gpu int32) {
	sent := d.sent[gpu]
	must(d.s.Complete(now, sent[0], sched.GPUID(gpu), now))
	d.sent[gpu] = append(sent[:0], sent[1:]...)
	d.act()
}

// Wake implements Server.
func (d *Downbeat) Wake(now Time) {
	d.s.Advance(now)
	d.act()
}

// NextWake implements Server.
func (d *Downbeat) NextWake() Time { return d.s.NextWake() }

func (d *Downbeat) act() {
	batches, drops := d.s.Actions()
	for _, b := range batches {
		d.ids = d.ids[:0]
		for i := range b.Requests {
			d.ids = append(d.ids, int32(b.Requests[i].ID))
		}
		d.sent[b.GPU] = append(d.sent[b.GPU], b.ID)
		d.w.Start(b.ExecAt, int32(b.GPU), int32(b.Model), d.ids)
	}
	for _, x := range drops {
		d.w.Drop(int32(x.ID))
	}
}

func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("sim: %v", err))
	}
}
