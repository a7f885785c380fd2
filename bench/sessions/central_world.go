package sessions

import (
	"time"

	"downbeat.dev/core/profile"
	"downbeat.dev/core/sim"
)

// makeWorld builds the World and its sessions after layout.
func (c *central) makeWorld(streams []Stream, span time.Duration) (*sim.World, []sim.Session, error) {
	w := &sim.World{GPUs: c.w.Workers, Slowness: c.slowness, Ctrl: ctrlDelay, Data: dataDelay}
	first, err := c.addModels(w)
	if err != nil {
		return nil, nil, err
	}

	// Requests come from frames, so the World cannot count them in advance: it gets their rates.
	w.Rates = make([]float64, len(w.Models))
	var all []sim.Session
	for i, s := range streams {
		a := &c.w.Apps[s.App]
		for j := range a.Modules {
			w.Rates[first[s.App]+int32(j)] += s.FPS * float64(a.Modules[j].FanOut)
		}

		period := time.Duration(1e9 / s.FPS)
		session := sim.Session{Latency: sim.Duration(a.Latency), Period: sim.Duration(period),
			First: sim.Time(s.From + phase(c.seed, i, period)), Last: sim.Time(min(s.Until, span)), Stages: c.makeStages(s.App, first[s.App])}
		c.allowSecondTries(session.Stages)
		all = append(all, session)
	}
	return w, all, nil
}

// addModels adds the modules of all applications that have sessions to a World, and returns each application's first
// model.
func (c *central) addModels(w *sim.World) (first []int32, err error) {
	first, c.single = make([]int32, len(c.w.Apps)), c.single[:0]
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
				return nil, err
			}
			w.Models = append(w.Models, m)

			// The time of a frame's requests at once bounds the time behind a second attempt.
			p, err := profileOf(a, i, 0)
			if err != nil {
				return nil, err
			}
			c.single = append(c.single, sim.Duration(p.Exec(a.Modules[i].FanOut)))
		}
	}
	return first, nil
}

// makeStages returns an application's stages: of each module its processor time, then its requests.
func (c *central) makeStages(app int, first int32) (stages []sim.Stage) {
	a := &c.w.Apps[app]
	for j := range a.Modules {
		m := &a.Modules[j]
		stages = append(stages, sim.Stage{Model: sim.Hook, Fixed: sim.Duration(m.CPU), After: modelStages(m.After)},
			sim.Stage{Model: first + int32(j), FanOut: m.FanOut, After: []int32{int32(2 * j)}, Offset: sim.Duration(c.offsets[app][2*j+1])})
	}
	return stages
}

// allowSecondTries makes dropped requests be made again if their frame has time for the later stages, as the frontend
// does (decision 0143). Static plans do not have this.
func (c *central) allowSecondTries(stages []sim.Stage) {
	if c.server != nil {
		return
	}

	// From the last stage back: Rest is the longest way from a stage's end to the client.
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
