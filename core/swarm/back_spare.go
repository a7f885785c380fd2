package swarm

import (
	"downbeat.dev/core/wire"
)

// spareStep is one step of spare work on a simulated backend, from the order to its end.
type spareStep struct {
	s          *backSession
	x          wire.SpareStart
	life       int
	begin, end Time
	untold     bool
}

// SpareReport counts the spare work of a Cluster's backends.
type SpareReport struct {
	Steps int
	Time  Duration
}

// offerLearners offers the backend's spare work on a new session.
func (s *backSession) offerLearners() {
	b, c := s.b, s.b.c
	if c.o.Learners == 0 || b.old || c.resting {
		return
	}

	var offers []wire.SpareOffer
	for k := range c.o.Learners {
		offers = append(offers, wire.SpareOffer{Work: uint32(k), Step: int64(c.o.SpareStep), Weight: float64(1 + k)})
	}
	c.sendReliably(&s.link, toEngine, func() { s.h.OfferSpare(offers) })
}

// How long learners have work after the faults end, and again before the models are probed.
const (
	spareAfter  Duration = 500e6
	spareBefore Duration = 200e6
)

// restLearners withdraws all spare work. Steps under way end normally.
func (c *Cluster) restLearners() {
	c.resting = true

	var withdrawn []wire.SpareOffer
	for k := range c.o.Learners {
		withdrawn = append(withdrawn, wire.SpareOffer{Work: uint32(k)})
	}

	for _, b := range c.backs {
		for _, s := range b.openSessions() {
			if len(withdrawn) > 0 && !b.old {
				c.sendReliably(&s.link, toEngine, func() { s.h.OfferSpare(withdrawn) })
			}
		}
	}
}

// wakeLearners makes learners offer their work again.
func (c *Cluster) wakeLearners() {
	c.resting = false
	for _, b := range c.backs {
		for _, s := range b.openSessions() {
			s.offerLearners()
		}
	}
}

// Spare implements engine.BackendPort.
func (s *backSession) Spare(m []wire.SpareStart) {
	c := s.b.c
	for _, x := range m {
		c.check.checkStep(s, &x)
		c.send(&s.link, fromEngine, LostStep, c.o.LoseSteps, func() { s.b.acceptStep(s, x) })
	}
}

// acceptStep queues a step on its GPU.
func (b *back) acceptStep(s *backSession, x wire.SpareStart) {
	c := b.c
	if b.dead || !s.isObeyed() {
		return
	}

	took := Duration(float64(c.o.SpareStep) * (0.5 + 0.5*c.rng.Float64()))
	if !c.calm && c.chance(c.o.StepOverruns) {
		c.happens(StepOverran, int64(b.index), int64(x.Number))
		took = Duration(float64(c.o.SpareStep) * (1.01 + 4*c.rng.Float64()))
	}

	free := &b.freeAt[x.GPU]
	o := &spareStep{s: s, x: x, life: b.life, begin: max(c.now, *free, b.hungUntil)}
	o.end, o.untold = o.begin.Add(took), !c.calm && c.chance(c.o.StepsUntold)
	if o.untold {
		c.happens(StepUntold, int64(b.index), int64(x.Number))
	}

	*free = o.end
	c.at(o.end, func() { b.endStep(o) })
}

// endStep reports the end of a step. A learner that faulted offers its work again after a delay.
func (b *back) endStep(o *spareStep) {
	c, s := b.c, o.s
	if o.life != b.life {
		return
	}

	c.report.Spare.Steps++
	c.report.Spare.Time += o.end.Sub(o.begin)

	if o.untold || o.end.Sub(o.begin) > c.o.SpareStep {
		again := wire.SpareOffer{Work: o.x.Work, Step: int64(c.o.SpareStep), Weight: 1}
		c.after(c.within(0, 50e6), func() {
			if !c.resting {
				c.sendReliably(&s.link, toEngine, func() { s.h.OfferSpare([]wire.SpareOffer{again}) })
			}
		})
	}

	if o.untold || !s.isObeyed() {
		return
	}

	m := wire.SpareEnd{Number: o.x.Number}
	c.send(&s.link, toEngine, LostStepEnd, c.o.LoseSteps, func() {
		c.check.beforeStepEnd(s, &m)
		s.h.EndSpare([]wire.SpareEnd{m})
	})
}

// checkStep checks a step against its GPU's plan and adds it to the plan.
func (k *checker) checkStep(s *backSession, x *wire.SpareStart) {
	k.c.addMark("step", int64(s.b.index)<<32|int64(x.GPU), int64(x.Number), x.Start)
	if s.closed || int(x.GPU) >= len(s.gpus) || int(x.Work) >= k.c.o.Learners || x.Step != int64(k.c.o.SpareStep) {
		k.fail("C1: backend %d (closed: %v) got %+v", s.b.index, s.closed, *x)
		return
	}

	// A step begins only on a GPU without planned batches; later batches are planned behind the step.
	g := &s.gpus[x.GPU]
	start := k.c.now.Add(Duration(x.Start))
	if x.Start < 0 || int64(start) < g.Free || len(g.Ahead) > 0 {
		k.fail("C3: a step is to start at %d on a GPU that is busy until %d with %d batches", start, g.Free, len(g.Ahead))
	}
	g.Free, g.step = int64(start.Add(Duration(x.Step))), x.Number
}

// beforeStepEnd runs before the engine takes the end of a step, which moves the batches behind the step forward. A late
// end moves nothing, and the engine may have given the step up.
func (k *checker) beforeStepEnd(s *backSession, m *wire.SpareEnd) {
	for i := range s.gpus {
		g := &s.gpus[i]
		if g.step != m.Number {
			continue
		}
		g.Free, g.step = min(g.Free, g.After(int64(k.c.now.Add(Duration(m.FreeIn))))), 0
	}
}
