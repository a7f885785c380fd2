package sessions

import (
	"fmt"
	"time"

	"downbeat.dev/bench/policy"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
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

// splitShare is the part of a latency that is divided among the stages. Budgets that use all of it leave no slack
// when two stages want a GPU at once: over four seeds of f9, shares of 1, 0.9, 0.75, 0.6 and 0.45 admitted 43, 41,
// 45, 47 and 47 sessions.
const splitShare = 0.6

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

// describeStages describes an application's modules as stages: processor time, then the GPU.
func describeStages(a *Application, quality int) (plan.Application, error) {
	p := plan.Application{Hop: hop}
	for i := range a.Modules {
		// Each module is two stages, its processor's and its model's; module i's model is stage 2 i + 1.
		m := &a.Modules[i]
		var after []int32
		for _, before := range m.After {
			after = append(after, 2*before+1)
		}
		of, err := profileOf(a, i, quality)
		if err != nil {
			return p, err
		}
		p.Stages = append(p.Stages, plan.Stage{Fixed: m.CPU, After: after}, plan.Stage{Profile: of, FanOut: float64(m.FanOut), After: []int32{int32(2 * i)}})
	}
	return p, nil
}

// profileOf returns a module's ℓ(b).
func profileOf(a *Application, module, quality int) (*profile.Profile, error) {
	one := float64(a.exec(module, quality))

	// The launch is the part of ℓ(1) that a larger batch does not repeat.
	return profile.Linear(time.Duration(one*(1-launchShare)), time.Duration(one*launchShare), batchMax)
}

// layout divides the latencies for streams that run at the same time, at the best qualities that fit, and returns the
// GPUs that the lightest qualities need.
func (c *central) layout(streams []Stream) (least float64, err error) {
	apps := c.w.Apps
	rate := make([]float64, len(apps))
	levels := 1
	for _, s := range streams {
		rate[s.App] += s.FPS
		if c.adapt {
			levels = max(levels, len(apps[s.App].Qualities))
		}
	}

	// Use the best qualities whose demand fits, or the lightest.
	target := plan.DefaultTargets().At(c.w.Workers) * float64(c.w.Workers)
	for level := range levels {
		least = 0

		budgets, offsets := make([][]time.Duration, len(apps)), make([][]time.Duration, len(apps))
		for k := range apps {
			if rate[k] == 0 {
				continue
			}

			a, err := describeStages(&apps[k], min(level, len(apps[k].Qualities)-1))
			if err != nil {
				return 0, err
			}
			b, err := plan.SplitLatency(a, rate[k], time.Duration(float64(apps[k].Latency)*splitShare))
			if err != nil {
				return 0, fmt.Errorf("application %q: %w", apps[k].Name, err)
			}

			// The undivided rest is common to all stages, in proportion.
			for j := range b.Budget {
				b.Budget[j] = time.Duration(float64(b.Budget[j]) / splitShare)
				b.Offset[j] = time.Duration(float64(b.Offset[j]) / splitShare)
			}
			budgets[k], offsets[k] = b.Budget, b.Offset
			least += b.Total
		}
		c.budgets, c.offsets = budgets, offsets
		if least <= target {
			break
		}
	}
	return least, nil
}

// world builds the World and its sessions after layout.
func (c *central) world(streams []Stream, span time.Duration) (*sim.World, []sim.Session, error) {
	w := &sim.World{GPUs: c.w.Workers, Slowness: c.slowness, Ctrl: ctrlDelay, Data: dataDelay}
	first := make([]int32, len(c.w.Apps))
	c.single = c.single[:0]
	for k := range c.w.Apps {
		a := &c.w.Apps[k]
		first[k] = int32(len(w.Models))

		// An application without sessions has no budgets and no models.
		if c.budgets[k] == nil {
			continue
		}
		for i := range a.Modules {
			m, err := c.worldModel(k, i)
			if err != nil {
				return nil, nil, err
			}
			w.Models = append(w.Models, m)

			// The time of a frame's requests at once bounds the time behind a second attempt.
			p, err := profileOf(a, i, 0)
			if err != nil {
				return nil, nil, err
			}
			c.single = append(c.single, sim.Duration(p.Exec(a.Modules[i].FanOut)))
		}
	}

	// A module is two stages: its processor time, then its requests.
	w.Rates = make([]float64, len(w.Models))
	var all []sim.Session
	for i, s := range streams {
		a := &c.w.Apps[s.App]
		period := time.Duration(1e9 / s.FPS)

		session := sim.Session{Latency: sim.Duration(a.Latency), Period: sim.Duration(period),
			First: sim.Time(s.From + phase(c.seed, i, period)), Last: sim.Time(min(s.Until, span))}
		for j := range a.Modules {
			m := &a.Modules[j]
			model := first[s.App] + int32(j)

			w.Rates[model] += s.FPS * float64(m.FanOut)
			var after []int32
			for _, before := range m.After {
				after = append(after, 2*before+1)
			}
			session.Stages = append(session.Stages, sim.Stage{Model: sim.Hook, Fixed: sim.Duration(m.CPU), After: after},
				sim.Stage{Model: model, FanOut: m.FanOut, After: []int32{int32(2 * j)}, Offset: sim.Duration(c.offsets[s.App][2*j+1])})
		}
		c.allowSecondTries(session.Stages)
		all = append(all, session)
	}
	return w, all, nil
}

// allowSecondTries makes dropped requests be made again if their frame has time for the later stages, as the frontend
// does (decision 0143). Static plans do not have this.
func (c *central) allowSecondTries(stages []sim.Stage) {
	if c.server != nil {
		return
	}
	for j := len(stages) - 1; j >= 0; j-- {
		s := &stages[j]
		takes := s.Fixed
		if s.Model != sim.Hook {
			takes += c.single[s.Model]
		}
		s.Rest += sim.Duration(hop)
		for _, before := range s.After {
			stages[before].Rest = max(stages[before].Rest, s.Rest+takes)
		}
	}
}

// worldModel returns a module as a World's model.
func (c *central) worldModel(app, module int) (sim.Model, error) {
	a := &c.w.Apps[app]
	m := sim.Model{Name: a.Name + "/" + a.Modules[module].Name, SLO: sim.Duration(a.Latency - c.offsets[app][2*module+1])}
	if c.server != nil { // a static plan uses exactly the stage's own share
		m.SLO = sim.Duration(c.budgets[app][2*module+1])
	}

	if !c.adapt || len(a.Qualities) == 1 || c.floors {
		quality := 0
		if c.floors {
			quality = len(a.Qualities) - 1
		}
		p, err := profileOf(a, module, quality)
		m.Profile = p
		return m, err
	}

	// Qualities are variants of one family: the scheduler chooses by price.
	for q := range a.Qualities {
		p, err := profileOf(a, module, q)
		if err != nil {
			return m, err
		}
		m.Variants = append(m.Variants, sim.Variant{Name: a.Qualities[q].Name, Accuracy: a.Qualities[q].Accuracy, Profiles: []*profile.Profile{p}})
	}
	return m, nil
}

// run serves streams until span.
func (c *central) run(streams []Stream, warm, span time.Duration) (*tally, *sim.Result, error) {
	w, sessions, err := c.world(streams, span)
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

	best := make([]float64, len(w.Models)) // accuracy of a model without variants
	k := 0
	for app := range c.w.Apps {
		if c.budgets[app] != nil {
			for range c.w.Apps[app].Modules {
				best[k] = c.w.Apps[app].Qualities[0].Accuracy
				k++
			}
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
