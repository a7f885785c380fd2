package swarm

import (
	"downbeat.dev/core/limits"
	"downbeat.dev/core/wire"
)

// probesMax bounds the number of models that are probed at the end.
const probesMax = 8

// probeModels sends one request to each of some models, one after the other. Each must be served.
func (c *Cluster) probeModels() {
	if c.check.err != nil {
		return
	}

	// Use a new frontend, which has no announcements yet, to check the catalogue as well.
	f := c.newFront()
	c.runUntil(c.now.Add(4 * retryEvery))

	for range min(probesMax, len(c.models)) {
		k := c.rng.IntN(len(c.models))
		s := f.obeyedSession()
		if c.check.err != nil || s == nil || s.ids[k] == 0 {
			c.check.fail("C8: model %d is not in the catalogue of a leader (%v)", k, s != nil)
			return
		}

		// A GPU that is slower than planned may miss deadlines until its overruns are learned.
		tries := 1
		if slow := c.slowGPUs(); slow > 0 {
			tries = learnedMost + trialsMost*slow
		}
		for ; tries > 0 && !f.submitProbe(s, k); tries-- {
		}
		if tries == 0 {
			c.check.fail("C8: a request for model %d was not served when all faults were over", k)
			return
		}
	}
}

// learnedMost is the number of batches after which deadlines allow for a GPU that is slower than planned. The
// percentile of overruns is computed twice more, after one that was computed before.
const learnedMost = 3 * limits.OverrunTurn

// trialsMost is the number of further batches that a GPU may run as trials, whose overruns are not learned from. Each
// hold is twice as long as the previous one, from 100 ms to 10 s, so trials are rare by then.
const trialsMost = 8

// slowGPUs returns the number of GPUs whose batches take longer than planned.
func (c *Cluster) slowGPUs() (n int) {
	for _, b := range c.backs {
		if b.isSlow() {
			n += len(b.hello.GPUs)
		}
	}
	return n
}

// submitProbe submits a probe for a model and reports whether it was served.
func (f *front) submitProbe(s *frontSession, k int) bool {
	c := f.c
	x := call{deadline: c.now.Add(2*c.models[k].slo + 50e6), model: k, live: true}
	f.calls = append(f.calls, x)
	id := uint64(len(f.calls))

	served, good := c.countServed(), c.report.Good
	f.submit(s, []wire.Submit{f.newSubmit(s, id)})
	f.scheduleExpiry(len(f.calls)-1, len(f.calls), x.deadline)
	c.runUntil(x.deadline.Add(2 * grace))

	// Probes are no part of the measured load.
	answered := c.countServed() == served+1
	c.report.Good = good
	return answered
}

// countServed counts the outputs that are good enough for a probe. GPUs of one kind are planned as at most 15 % slower
// than the median (docs/decisions/0238): batches of a slower GPU end late until the engine has learned their overrun.
func (c *Cluster) countServed() int {
	if c.o.loadsModels() && c.o.Unlike > oneKind {
		return c.report.Good + c.report.Late
	}
	return c.report.Good
}
