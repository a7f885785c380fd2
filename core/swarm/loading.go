package swarm

import (
	"slices"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// Model memory of a simulated backend. As in the real backend, placements run one after another: a load takes memory
// from its beginning, then every batch size runs once, alone on the GPU, and then the model accepts batches.

// aloneWait is how long a warm-up waits for a moment without due batches, as in the real backend.
const aloneWait Duration = 20e6

// modelMemory is a backend's models and memory.
type modelMemory struct {
	loaded  [][]bool // by model and GPU; nil: all are loaded and memory is not counted
	used    []uint64 // by GPU: static bytes
	waiting []asked
	busy    bool
}

// asked is a placement and the session that asked for it.
type asked struct {
	p wire.Placement
	s *backSession
}

// tellPlacement sends a report to every scheduler.
func (b *back) tellPlacement(r wire.PlacementReport) {
	for _, s := range b.openSessions() {
		b.c.sendReliably(&s.link, toEngine, func() {
			if !s.closed && !s.isOrphaned() && !s.h.Report([]wire.PlacementReport{r}) {
				b.c.check.fail("a report on a placement was refused: %+v", r)
			}
		})
	}
}

// takePlacements queues a scheduler's placements.
func (b *back) takePlacements(s *backSession, all []wire.Placement) {
	for _, p := range all {
		b.memory.waiting = append(b.memory.waiting, asked{p, s})
	}
	b.placeNext()
}

// placeNext begins the next placement unless one is under way.
func (b *back) placeNext() {
	x := &b.memory
	if x.busy || len(x.waiting) == 0 {
		return
	}

	p := x.waiting[0].p
	x.waiting, x.busy = x.waiting[1:], true
	b.c.report.Moves.Placements++

	r := wire.PlacementReport{Number: p.Number, GPU: p.GPU, Model: p.Model, State: wire.Loaded}
	end := func() {
		b.tellPlacement(r)
		x.busy = false
		b.placeNext()
	}

	// A placement that asks for the present state is reported as carried out at once.
	loaded := x.loaded[p.Model][p.GPU]
	switch {
	case p.Op == wire.Unload && loaded:
		unloading := r
		unloading.State, r.State = wire.Unloading, wire.Unloaded
		b.tellPlacement(unloading)
		b.unloadModel(p, end)
	case p.Op == wire.Unload:
		r.State = wire.Unloaded
		end()
	case loaded:
		end()
	default:
		b.loadModel(p, &r, end)
	}
}

// keepModels makes a dying backend load its models again when it restarts, as the real one with a state directory
// does.
func (b *back) keepModels() {
	x := &b.memory
	x.waiting, x.busy = nil, false

	clear(x.used)
	for n := range x.loaded {
		for g, loaded := range x.loaded[n] {
			if loaded {
				x.used[g] += b.hello.Models[n].Info.Static
			}
		}
	}
}

// loadModel takes memory and time, and then warms the model up.
func (b *back) loadModel(p wire.Placement, r *wire.PlacementReport, end func()) {
	c, m := b.c, &b.hello.Models[p.Model]

	// The memory is taken before the load, as in the real backend.
	b.memory.used[p.GPU] += m.Info.Static
	b.countMemory(p)
	began := c.now

	b.atInLife(c.now.Add(c.o.LoadTime), func() {
		b.warmModel(p, 1, func() {
			b.memory.loaded[p.Model][p.GPU] = true
			r.Load, r.WarmUp = int64(c.o.LoadTime), int64(c.now.Sub(began)-c.o.LoadTime)
			r.Static, r.Dynamic = m.Info.Static, m.Info.Dynamic
			end()
		})
	})
}

// countMemory counts a GPU that exceeds its memory with the new model and the largest model's run (V3).
func (b *back) countMemory(p wire.Placement) {
	need := b.hello.Models[p.Model].Info.Dynamic
	for n := range b.hello.Models {
		if b.memory.loaded[n][p.GPU] {
			need = max(need, b.hello.Models[n].Info.Dynamic)
		}
	}
	if need += b.memory.used[p.GPU]; need > b.hello.Details[p.GPU].Memory {
		b.c.report.Moves.MemoryExceeded++
		b.c.addMark("memory exceeded", int64(b.index), int64(p.GPU), int64(need))
	}
}

// warmModel runs a batch size alone on the GPU, then the larger ones.
func (b *back) warmModel(p wire.Placement, size int, end func()) {
	c, table := b.c, b.hello.Models[p.Model].Profile
	if size > len(table) {
		end()
		return
	}

	// Wait for an idle moment for at most aloneWait, then queue behind the batches under way.
	free := &b.freeAt[p.GPU]
	if *free > c.now {
		b.atInLife(min(*free, c.now.Add(aloneWait)), func() {
			*free = max(*free, c.now).Add(Duration(table[size-1]))
			b.atInLife(*free, func() { b.warmModel(p, size+1, end) })
		})
		return
	}

	*free = c.now.Add(Duration(table[size-1]))
	b.atInLife(*free, func() { b.warmModel(p, size+1, end) })
}

// atInLife calls do at a time, unless the backend has died by then.
func (b *back) atInLife(at Time, do func()) {
	life := b.life

	b.c.at(at, func() {
		if b.life == life {
			do()
		}
	})
}

// unloadModel refuses further orders of the model, waits for its present ones, and frees the memory.
func (b *back) unloadModel(p wire.Placement, end func()) {
	b.memory.loaded[p.Model][p.GPU] = false

	last := b.c.now
	for _, o := range b.running {
		if o.x.GPU == p.GPU && o.x.Model == p.Model {
			last = max(last, o.end)
		}
	}

	b.atInLife(last, func() {
		b.memory.used[p.GPU] -= b.hello.Models[p.Model].Info.Static
		end()
	})
}

// hasModel reports whether a batch's model is loaded on its GPU.
func (b *back) hasModel(x *wire.Execute) bool {
	return b.memory.loaded == nil || b.memory.loaded[x.Model][x.GPU]
}

// giveBack returns a batch of an unloaded model, for others to serve.
func (b *back) giveBack(o *order) {
	b.c.report.Moves.GivenBack += len(o.x.Items)
	o.exec, o.bad = 0, nil
	for i := range o.x.Items {
		o.bad = append(o.bad, wire.ItemFailure{Index: uint32(i), Reason: model.NoBackend})
	}
}

// newHello returns the hello for a new session.
func (b *back) newHello() wire.BackendHello {
	h := b.hello
	h.Models = slices.Clone(h.Models)
	if b.old {
		forgetFamilies(&h)
	}
	for n := range b.memory.loaded {
		h.Models[n].Loaded = slices.Clone(b.memory.loaded[n])
	}
	return h
}
