package policy

import (
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// Form is an interpretation of Symphony's scheduling algorithm.
type Form int

const (
	// Printed follows appendix C literally: exec_at = max(earliest, frontrun), because the last assignment overrides
	// the βλ rule before it, and drops are the infeasible prefix.
	Printed Form = iota
	// Text follows §4.3: earliest once there are more than βλ requests, before that frontrun.
	Text
	// Windowed is Printed, but if a granted GPU's batch would be smaller than T, it slides the window as Nexus's
	// early drop does. T is the batch size that a queue reaches at its frontrun.
	Windowed
	// Relaxed is Windowed, but accepts batches of 0.8 T. It is in no paper, but it is the strongest of this family
	// and so a necessary baseline.
	Relaxed
)

// symphony is appendix C with ModelThread and RankThread in one.
type symphony struct {
	w      *sim.World
	form   Form
	models []symModel
	base   int32        // number of its first GPU in the World
	gpus   []sched.Time // gpu_free_at; Never while granted
	first  int          // the GPU that is free first
	inMC   int
	wake   sched.Time
}

type symModel struct {
	q         fifo
	bs        int
	execAt    sched.Time
	invalid   sched.Time
	timer     sched.Time // model_timer, Never when off
	drop      sched.Time // drop_timer
	mc        bool       // in mc, waiting for a GPU
	target    int
	betaLam   float64
	estimator estimator
}

// NewSymphony returns Symphony's scheduler in one of its forms.
func NewSymphony(w *sim.World, f Form) sim.Server { return NewSymphonyOn(w, f, 0, w.GPUs) }

// NewSymphonyOn returns the scheduler of a sub-cluster (§4.7): n GPUs from base on. Pass it only the requests of its
// own models, whose Profile must be that of its GPUs.
func NewSymphonyOn(w *sim.World, f Form, base, n int) sim.Server {
	s := &symphony{w: w, form: f, models: make([]symModel, len(w.Models)), base: int32(base), gpus: make([]sched.Time, n)}
	for i := range s.models {
		m := &s.models[i]
		m.timer, m.drop = sched.Never, sched.Never
		m.estimator.setRate(w.Models[i].Rate)
		s.deriveBatch(int32(i))
	}

	s.wake = sched.Never
	return s
}

func (s *symphony) deriveBatch(m int32) {
	d := &s.models[m]
	p := s.w.Models[m].Profile
	d.target = staggeredBatch(s.w, m, d.estimator.rate)

	// The rule's β·λ: 2 l(1) - l(2) is β, the launch cost, of the line through both.
	d.betaLam = (2*p.Exec(1) - p.Exec(2)).Seconds() * d.estimator.rate
}

// staggeredBatch returns the largest b with (b−1)/λ + ℓ(b) ≤ SLO.
func staggeredBatch(w *sim.World, m int32, rate float64) int {
	b := 1
	for rate > 0 && b < w.Models[m].Profile.Max() &&
		float64(b)/rate*1e9+float64(execTime(w, m, b+1)+w.Lead(b+1)) <= float64(w.Models[m].SLO) {
		b++
	}
	return b
}

func (s *symphony) Arrive(now sched.Time, r int32, m int32) {
	d := &s.models[m]
	if d.estimator.countArrival(now) {
		s.deriveBatch(m)
	}
	d.q.Push(r)
	s.updateCandidate(now, m, 0)
	s.informCandidate(m)
	s.armTimer(now)
}

func (s *symphony) Done(now sched.Time, gpu int32) {}

func (s *symphony) NextWake() sched.Time { return s.wake }

func (s *symphony) Wake(now sched.Time) {
	for i := range s.models {
		m := int32(i)
		d := &s.models[i]
		if d.drop <= now {
			s.updateCandidate(now, m, 0)
			s.informCandidate(m)
		}
		if d.timer <= now {
			s.onModelTimer(now, m)
		}
	}

	// After a GPU's turn, another candidate may also be due.
	for s.inMC > 0 && s.gpuTimer() <= now {
		s.onGPUTimer(now)
	}
	s.armTimer(now)
}

// updateCandidate is update_candidate: prune, then set exec_at and invalid_after.
func (s *symphony) updateCandidate(now sched.Time, m int32, freeAt sched.Time) {
	d := &s.models[m]
	one := max(now.Add(s.w.Lead(1)), freeAt).Add(execTime(s.w, m, 1))
	d.q.DropBefore(s.w, one)

	d.bs, d.drop = 0, sched.Never
	if d.q.Len() == 0 {
		return
	}

	d.bs = d.q.fitBatch(s.w, m, 0, now, freeAt)
	dl := s.w.Deadline(d.q.At(0))
	d.drop = dl - sched.Time(execTime(s.w, m, 1)+s.w.Lead(1)) + 1

	earliest := max(now.Add(s.w.Lead(d.bs)), freeAt)
	frontrun := dl - sched.Time(execTime(s.w, m, d.bs+1))
	d.execAt = max(earliest, frontrun)
	if s.form == Text && float64(d.bs) > d.betaLam {
		d.execAt = earliest
	}

	d.invalid = dl - sched.Time(execTime(s.w, m, d.bs))
}

// informCandidate is inform_candidate.
func (s *symphony) informCandidate(m int32) {
	d := &s.models[m]
	if d.mc {
		d.mc = false
		s.inMC--
	}
	d.timer = sched.Never
	if d.bs > 0 {
		d.timer = d.execAt - sched.Time(s.w.Lead(d.bs))
	}
}

func (s *symphony) onModelTimer(now sched.Time, m int32) {
	d := &s.models[m]
	d.timer = sched.Never

	// A GPU is free by then, or the model waits for one as a candidate.
	if s.gpus[s.first] <= d.execAt {
		s.grantGPU(now, m)
		return
	}
	d.mc = true
	s.inMC++
}

// gpuTimer returns when the first GPU may be bound to the candidate with the longest delay.
func (s *symphony) gpuTimer() sched.Time {
	// If inputs take no time, the lead is the same for every batch and needs no search.
	bs := 0
	if s.w.Data > 0 {
		for i := range s.models {
			if s.models[i].mc {
				bs = max(bs, s.models[i].bs)
			}
		}
	}
	return s.gpus[s.first] - sched.Time(s.w.Lead(bs))
}

func (s *symphony) onGPUTimer(now sched.Time) {
	best := -1
	for i := range s.models {
		d := &s.models[i]
		if !d.mc {
			continue
		}
		if s.gpus[s.first] > d.invalid {
			// Appendix C removes the candidate here. To avoid forgetting requests until the next arrival, make the
			// candidate again from the requests that can still be served.
			s.updateCandidate(now, int32(i), s.gpus[s.first])
			if d.bs == 0 {
				d.mc = false
				s.inMC--
				continue
			}
		}
		if best < 0 || d.execAt < s.models[best].execAt {
			best = i
		}
	}
	if best >= 0 {
		s.grantGPU(now, int32(best))
	}
}

// grantGPU is granted_gpu for the GPU that is free first.
func (s *symphony) grantGPU(now sched.Time, m int32) {
	d := &s.models[m]
	if d.mc {
		d.mc = false
		s.inMC--
	}

	gpu := s.first
	s.updateCandidate(now, m, s.gpus[gpu])
	if s.form == Windowed || s.form == Relaxed {
		s.slideWindow(now, m, gpu)
	}

	if d.bs > 0 {
		at := max(now.Add(s.w.Lead(d.bs)), s.gpus[gpu])

		// Deferral: the batch waits until its frontrun even on a free GPU.
		if s.form != Text {
			at = max(at, min(d.execAt, d.invalid))
		}

		n := d.bs
		s.w.Start(at, s.base+int32(gpu), m, d.q.Take(n))
		s.gpus[gpu] = at.Add(execTime(s.w, m, n))

		s.first = 0
		for i, t := range s.gpus {
			if t < s.gpus[s.first] {
				s.first = i
			}
		}
	}

	s.updateCandidate(now, m, 0)
	s.informCandidate(m)
}

func (s *symphony) slideWindow(now sched.Time, m int32, gpu int) {
	d := &s.models[m]
	enough := d.target
	if s.form == Relaxed {
		enough = (8*d.target + 9) / 10
	}
	if d.bs == 0 || d.bs == d.q.Len() || d.bs >= enough {
		return
	}
	for h := 1; h < d.q.Len(); h++ {
		if n := d.q.fitBatch(s.w, m, h, now, s.gpus[gpu]); n >= enough {
			for range h {
				s.w.Drop(d.q.Take(1)[0])
			}
			s.updateCandidate(now, m, s.gpus[gpu])
			return
		}
	}
}

// armTimer sets the next wake-up over all timers.
func (s *symphony) armTimer(now sched.Time) {
	s.wake = sched.Never
	for i := range s.models {
		s.wake = min(s.wake, s.models[i].timer, s.models[i].drop)
	}
	if s.inMC > 0 {
		s.wake = min(s.wake, s.gpuTimer())
	}
	s.wake = max(s.wake, now)
}
