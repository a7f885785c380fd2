package sessions

import (
	"slices"
	"time"

	"downbeat.dev/bench/policy"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/sim"
)

// Network delays, and the parameters of a trial.
const (
	hop        = 500 * time.Microsecond // from a stage to the next
	ctrlDelay  = 200e3                  // ns
	dataDelay  = 50e3                   // ns per input
	trialSpan  = 20 * time.Second
	trialShare = 99          // % of each session's frames
	trialWarm  = time.Second // warm-up, in which the scheduler learns the rates; not counted
)

// central serves sessions with one queue per module and all GPUs for every module.
type central struct {
	w        *Workload
	seed     uint64
	adapt    bool                        // the price of GPU time chooses qualities; else always the best
	server   func(*sim.World) sim.Server // nil: Downbeat
	slowness []float64                   // by worker; nil: all are as fast as profiled
	floors   bool                        // the lightest quality answers: the load that admission can always promise
	budgets  [][]time.Duration           // by application and stage; of the last layout
	offsets  [][]time.Duration           // likewise
	single   []sim.Duration              // by model of the World: the time of one frame's requests together
}

// run serves streams until span.
func (c *central) run(streams []Stream, warm, span time.Duration) (*tally, *sim.Result, error) {
	w, sessions, err := c.makeWorld(streams, span)
	if err != nil {
		return nil, nil, err
	}

	t := newTally(len(streams))
	frames := sim.NewFrames(w, sim.Duration(hop), sessions, func(session int, begun, ended sim.Time, inTime bool) {
		if begun >= sim.Time(warm) {
			t.countFrame(session, inTime, ended <= begun.Add(sessions[session].Latency))
			if !inTime {
				t.noteLate(session, float64(ended-begun)/float64(sessions[session].Latency)-1)
			}
		}
	})

	// A model without variants answers with its application's best quality. addModels has put the models in this order.
	var best []float64
	for app := range c.w.Apps {
		if c.budgets[app] != nil {
			best = append(best, slices.Repeat([]float64{c.w.Apps[app].Qualities[0].Accuracy}, len(c.w.Apps[app].Modules))...)
		}
	}

	// Count accuracy per answer, for models with and without variants.
	w.Trace = func(_, model int32, _, _ sim.Time, requests []int32) {
		t.accuracy, t.answers = t.accuracy+best[model]*float64(len(requests)), t.answers+float64(len(requests))
	}
	w.Answered = func(_, model, variant int32, _, _ sim.Time, requests []int32) {
		t.accuracy, t.answers = t.accuracy+w.Models[model].Variants[variant].Accuracy*float64(len(requests)), t.answers+float64(len(requests))
	}

	// A static plan cannot remove requests from its queues.
	if c.server != nil {
		result := w.Run(c.server(w))
		return t, result, frames.Check()
	}
	d := sim.NewDownbeat(w)
	frames.CancelBy(d)
	result := w.Run(d)
	return t, result, frames.Check()
}

// admitStreams reports whether streams fit together: it checks their demand at the floors, and then runs a trial of
// this same scheduler.
func (c *central) admitStreams(streams []Stream) (bool, error) {
	least, err := c.layout(streams)
	if err != nil {
		return false, nil // no budgets fit the latency at this rate: a refusal, not an error
	}
	if least > plan.DefaultTargets().At(c.w.Workers)*float64(c.w.Workers) {
		return false, nil
	}

	// In the trial all sessions run at once.
	now := make([]Stream, len(streams))
	for i, s := range streams {
		now[i] = Stream{App: s.App, FPS: s.FPS, Until: trialSpan}
	}

	// Accuracy is not promised, so the price may lower it where the trial passes at the floors (as core/app.Admit
	// tries sessions).
	c.floors = c.adapt
	t, _, err := c.run(now, trialWarm, trialSpan)
	c.floors = false
	if err != nil {
		return false, err
	}

	// In such a short time a session's share is one or two frames: round it as for a minute.
	for _, by := range t.by {
		if by.frames-by.good > int(float64(by.frames)*(100-trialShare)/100+0.5) {
			return false, nil
		}
	}
	return true, nil
}

// serveStreams admits the workload's streams one by one, and runs the admitted ones.
func (c *central) serveStreams(name string) (Result, error) {
	// Each session is tried together with those that are already in.
	var in []Stream
	refused, longest := 0, time.Duration(0)
	for _, s := range c.w.Streams {
		if c.server != nil { // no session is refused
			in = append(in, s)
			continue
		}

		began := time.Now()
		ok, err := c.admitStreams(append(in[:len(in):len(in)], s))
		longest = max(longest, time.Since(began))
		if err != nil {
			return Result{}, err
		}
		if ok {
			in = append(in, s)
			continue
		}

		refused++
		if c.w.UntilFull {
			break
		}
	}

	// The admitted sessions, over the whole span.
	served := *c.w
	served.Streams = in
	served.schedule(len(in))
	c.w = &served
	if _, err := c.layout(served.Streams); err != nil {
		return Result{}, err
	}
	t, result, err := c.run(served.Streams, 0, served.Span)
	if err != nil {
		return Result{}, err
	}

	r := t.result(&served, name, time.Duration(result.Busy))
	r.Refused, r.AdmitMS = refused, longest.Seconds()*1e3

	requests := 0
	for b, n := range result.SizeSum {
		requests += n
		r.BatchMean += float64(b * n)
	}
	r.BatchMean /= float64(max(requests, 1))
	return r, nil
}

// nexus and clipper are the published schedulers on static shares of the latency.
func nexus(w *sim.World) sim.Server   { return policy.NewNexus(w, 1) }
func clipper(w *sim.World) sim.Server { return policy.NewClipper(w) }
