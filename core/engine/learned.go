package engine

import (
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// Learned returns the engine's measurements of each model that it serves, for a standby scheduler. It takes
// partitions' locks one at a time.
func (e *Engine) Learned() []wire.Learned {
	var all []wire.Learned
	for _, m := range e.Models() {
		if !m.Ready {
			continue
		}
		p := e.partition(sched.ModelID(m.ID))
		p.mu.Lock()
		l, late := p.s.Learned(sched.ModelID(m.ID)), p.overrunOf(m.ID).most
		p.mu.UnlockBehind()

		// A model without requests has no measurements.
		if l.Rate != 0 {
			all = append(all, wire.Learned{Model: m.Name, Version: m.Version, Rate: l.Rate, Margin: int64(l.Margin), Overrun: late})
		}
	}
	return all
}

// Learn adopts another engine's measurements, for models that have had no requests here.
func (e *Engine) Learn(all []wire.Learned) {
	type key struct{ name, version string }
	ids := map[key]sched.ModelID{}
	for _, m := range e.Models() {
		ids[key{m.Name, m.Version}] = sched.ModelID(m.ID)
	}

	// What is learned belongs to models by name: their ids differ between engines.
	now := e.clock.Now()
	for _, l := range all {
		id, known := ids[key{l.Model, l.Version}]
		if !known {
			continue
		}
		p := e.partition(id)
		p.mu.Lock()
		p.s.Learn(now, id, sched.Learned{Rate: l.Rate, Margin: sched.Duration(l.Margin)})
		p.learnOverrun(uint32(id), l.Overrun)
		p.mu.UnlockBehind()
	}
}

// learnOverrun sets the expected lateness in a model's sub-clusters to what another engine measured, until this one
// has its own samples. The lock is held.
func (p *partition) learnOverrun(model uint32, late int64) {
	if int(model) >= len(p.homes) {
		return
	}

	// Lateness is a sub-cluster's, so a model with several homes sets it in each.
	homes := p.severalOf(model)
	if homes == nil {
		homes = []uint32{p.homes[model]}
	}
	for _, sub := range homes {
		if sub == 0 {
			continue
		}
		if o := p.overrunIn(sub); o.n == 0 {
			o.setPercentile(max(0, late), o.floor)
		}
	}
}
