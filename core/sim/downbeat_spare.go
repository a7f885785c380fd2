package sim

import "downbeat.dev/core/sched"

// offerSpare offers the World's learners to every kind of GPU.
func (d *Downbeat) offerSpare(now Time) {
	d.running = make([]sched.SpareStep, d.w.GPUs)

	for k, n := range d.gpus {
		for i, l := range d.w.Learners {
			if n == 0 {
				continue
			}

			weight := l.Weight
			if weight == 0 {
				weight = 1
			}
			must(d.s.OfferSpare(now, uint32(k), sched.SpareWork{ID: sched.WorkID(i), Step: l.Step, Weight: weight}))
			d.takeActions()
		}
	}
}

// startSteps starts the steps that the scheduler ordered.
func (d *Downbeat) startSteps() {
	for _, x := range d.s.SpareSteps() {
		d.running[x.GPU] = x
		d.w.StartStep(x.Start, int32(x.GPU), int32(x.Work))
	}
}

// StepDone implements StepServer. The scheduler ignores the end of a step that it has given up.
func (d *Downbeat) StepDone(now Time, gpu int32) {
	if d.s.EndSpare(now, sched.GPUID(gpu), d.running[gpu].Epoch, now) == nil {
		d.takeActions()
	}
}

// Lose implements StepServer. A lost GPU reports no batch any more.
func (d *Downbeat) Lose(now Time, gpu int32) {
	d.sent[gpu] = d.sent[gpu][:0]
	d.s.RemoveGPU(now, sched.GPUID(gpu))
	d.takeActions()
}

// Return implements StepServer.
func (d *Downbeat) Return(now Time, gpu int32) {
	must(d.s.AddGPU(now, sched.GPUID(gpu), uint32(d.w.Kind(gpu))))
	d.takeActions()
}
