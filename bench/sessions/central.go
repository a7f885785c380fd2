package sessions

import (
	"fmt"
	"time"

	"downbeat.dev/bench/policy"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sim"
)

// What the network takes, and a trial.
const (
	hop        = 500 * time.Microsecond // from a stage to the next
	ctrlDelay  = 200e3                  // ns
	dataDelay  = 50e3                   // ns for each input
	trialSpan  = 20 * time.Second
	trialShare = 99          // % of each session's frames
	trialWarm  = time.Second // in which the scheduler learns the rates; it is not counted
)

// splitShare is the part of a latency that is divided among the stages. Budgets that used all of it left no room for two
// stages that want a GPU at once: over four seeds of f9 1, 0.9, 0.75, 0.6 and 0.45 let in 43, 41, 45, 47 and 47 sessions.
const splitShare = 0.6

// central serves sessions with one queue per module, all GPUs for all.
type central struct {
	w        *Workload
	seed     uint64
	adapt    bool                        // qualities are chosen by the price of GPU time; else always the best
	server   func(*sim.World) sim.Server // nil: Downbeat
	slowness []float64                   // by worker; nil: all are as fast as profiled
	floors   bool                        // everybody answers at the lightest quality: what admission can promise under any load
	budgets  [][]time.Duration           // by application and stage; of the last layout
	offsets  [][]time.Duration           // likewise
	single   []sim.Duration              // by model of the World: what the requests of one frame take together
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

// profileOf is a module's ℓ(b).
func profileOf(a *Application, module, quality int) (*profile.Profile, error) {
	one := float64(a.exec(module, quality))

	// The launch is the part of l(1) that a larger batch does not pay again.
	return profile.Linear(time.Duration(one*(1-launchShare)), time.Duration(one*launchShare), batchMax)
}

// layout divides the latencies for streams that run at the same time, at the best qualities that fit, and returns the GPUs
// that the lightest need.
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

	// The best qualities whose demand fits; the lightest where none does.
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

			// What was not divided is everybody's, in proportion.
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

// world makes the World and its sessions after layout.
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

			// What a frame's requests take at once bounds what lies behind a second try.
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

// allowSecondTries has requests that were dropped made once more where their frame has time for what lies behind them at least, as the frontend
// does (decision 0143). Static plans know of none.
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

// worldModel is a module as the World knows it.
func (c *central) worldModel(app, module int) (sim.Model, error) {
	a := &c.w.Apps[app]
	m := sim.Model{Name: a.Name + "/" + a.Modules[module].Name, SLO: sim.Duration(a.Latency - c.offsets[app][2*module+1])}
	if c.server != nil { // a static plan has the stage's own share, and no more
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

	// Accuracy counts by answer, whichever way it came.
	w.Trace = func(_, model int32, _, _ sim.Time, requests []int32) {
		t.accuracy, t.answers = t.accuracy+best[model]*float64(len(requests)), t.answers+float64(len(requests))
	}
	w.Answered = func(_, model, variant int32, _, _ sim.Time, requests []int32) {
		t.accuracy, t.answers = t.accuracy+w.Models[model].Variants[variant].Accuracy*float64(len(requests)), t.answers+float64(len(requests))
	}

	// A static plan cannot take requests out of its queues.
	if c.server != nil {
		result := w.Run(c.server(w))
		return t, result, frames.Check()
	}
	d := sim.NewDownbeat(w)
	frames.CancelBy(d)
	result := w.Run(d)
	return t, result, frames.Check()
}

// admitStreams reports whether streams fit together: their demand at the floors, then a trial of this very brain.
func (c *central) admitStreams(streams []Stream) (bool, error) {
	least, err := c.layout(streams)
	if err != nil {
		return false, nil // the latency cannot be met at this rate: a refusal, not a fault
	}
	if least > plan.DefaultTargets().At(c.w.Workers)*float64(c.w.Workers) {
		return false, nil
	}

	// In the trial all sessions run at once.
	now := make([]Stream, len(streams))
	for i, s := range streams {
		now[i] = Stream{App: s.App, FPS: s.FPS, Until: trialSpan}
	}
	// Accuracy is not promised, so the price may take it where the trial passes at the floors (as core/app.Admit tries sessions).
	c.floors = c.adapt
	t, _, err := c.run(now, trialWarm, trialSpan)
	c.floors = false
	if err != nil {
		return false, err
	}
	// In so short a time a share of a session's frames is one of them or two: it is rounded, as it is of a minute's.
	for _, by := range t.by {
		if by.frames-by.good > int(float64(by.frames)*(100-trialShare)/100+0.5) {
			return false, nil
		}
	}
	return true, nil
}

// serveStreams admits the workload's streams one by one, and runs those that were let in.
func (c *central) serveStreams(name string) (Result, error) {
	var in []Stream
	refused, longest := 0, time.Duration(0)
	for _, s := range c.w.Streams {
		if c.server != nil { // nobody is refused
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

	// Those that were let in, over the whole span.
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

// nexus and clipper are the published schedulers over static shares of the latency.
func nexus(w *sim.World) sim.Server   { return policy.NewNexus(w, 1) }
func clipper(w *sim.World) sim.Server { return policy.NewClipper(w) }
