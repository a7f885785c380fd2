package sim

import (
	"slices"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// What a simulated backend holds. It carries placements out one after another, as the real one does: a load takes memory
// from its beginning, then every batch size runs once, alone on the GPU, and then batches are taken.

// aloneWait is how long a warm-up waits for a moment when nothing is due, as the real backend does.
const aloneWait Duration = 20e6

// shelf is a backend's models and memory.
type shelf struct {
	loaded  [][]bool // by model and GPU; nil: all are loaded, and nothing is counted
	used    []uint64 // by GPU: static bytes
	waiting []asked
	busy    bool
}

// asked is a placement, and the session that asked for it.
type asked struct {
	p wire.Placement
	s *backSession
}

// tellPlacement reports to every scheduler.
func (b *back) tellPlacement(r wire.PlacementReport) {
	for _, s := range b.sessions {
		if s != nil {
			b.c.tell(&s.link, toEngine, func() {
				if !s.closed && !s.orphaned() && !s.h.Report([]wire.PlacementReport{r}) {
					b.c.check.fail("a report on a placement was refused: %+v", r)
				}
			})
		}
	}
}

// takePlacements queues what a scheduler asks for.
func (b *back) takePlacements(s *backSession, all []wire.Placement) {
	for _, p := range all {
		b.shelf.waiting = append(b.shelf.waiting, asked{p, s})
	}
	b.placeNext()
}

// placeNext begins the next placement, unless one is under way.
func (b *back) placeNext() {
	x := &b.shelf
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

// keepShelf leaves a backend that dies what it will load when it starts again: what it had, as the real one with a state directory.
func (b *back) keepShelf() {
	x := &b.shelf
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

// loadModel takes memory and time, and warms the model up.
func (b *back) loadModel(p wire.Placement, r *wire.PlacementReport, end func()) {
	c, m := b.c, &b.hello.Models[p.Model]

	b.shelf.used[p.GPU] += m.Info.Static
	b.countMemory(p)
	began := c.now

	b.atInLife(c.now.Add(c.o.LoadTime), func() {
		b.warmModel(p, 1, func() {
			b.shelf.loaded[p.Model][p.GPU] = true
			r.Load, r.WarmUp = int64(c.o.LoadTime), int64(c.now.Sub(began)-c.o.LoadTime)
			r.Static, r.Dynamic = m.Info.Static, m.Info.Dynamic
			end()
		})
	})
}

// countMemory notes whether a GPU holds more than it has, with the model that is coming and the largest while it runs (V3).
func (b *back) countMemory(p wire.Placement) {
	need := b.hello.Models[p.Model].Info.Dynamic
	for n := range b.hello.Models {
		if b.shelf.loaded[n][p.GPU] {
			need = max(need, b.hello.Models[n].Info.Dynamic)
		}
	}
	if need += b.shelf.used[p.GPU]; need > b.hello.Details[p.GPU].Memory {
		b.c.report.Moves.MemoryExceeded++
		b.c.note("memory exceeded", int64(b.index), int64(p.GPU), int64(need))
	}
}

// warmModel runs a batch size alone, and then those above it.
func (b *back) warmModel(p wire.Placement, size int, end func()) {
	c, table := b.c, b.hello.Models[p.Model].Profile
	if size > len(table) {
		end()
		return
	}

	// Behind what is under way only after some time.
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

// atInLife does something at a time, unless the backend has died by then.
func (b *back) atInLife(at Time, do func()) {
	life := b.life

	b.c.at(at, func() {
		if b.life == life {
			do()
		}
	})
}

// unloadModel takes no more orders of the model, waits for those that it has, and frees the memory.
func (b *back) unloadModel(p wire.Placement, end func()) {
	b.shelf.loaded[p.Model][p.GPU] = false
	last := b.c.now
	for _, o := range b.running {
		if o.x.GPU == p.GPU && o.x.Model == p.Model {
			last = max(last, o.end)
		}
	}
	b.atInLife(last, func() {
		b.shelf.used[p.GPU] -= b.hello.Models[p.Model].Info.Static
		end()
	})
}

// holds says whether a batch's model is loaded on its GPU.
func (b *back) holds(x *wire.Execute) bool {
	return b.shelf.loaded == nil || b.shelf.loaded[x.Model][x.GPU]
}

// giveBack answers a batch of a model that is not loaded: others serve it.
func (b *back) giveBack(o *order) {
	b.c.report.Moves.GivenBack += len(o.x.Items)
	o.exec, o.bad = 0, nil
	for i := range o.x.Items {
		o.bad = append(o.bad, wire.ItemFailure{Index: uint32(i), Reason: model.NoBackend})
	}
}

// greet returns the hello for a session that opens now.
func (b *back) greet() wire.BackendHello {
	h := b.hello
	h.Models = slices.Clone(h.Models)
	if b.old {
		forgetFamilies(&h)
	}
	for n := range b.shelf.loaded {
		h.Models[n].Loaded = slices.Clone(b.shelf.loaded[n])
	}
	return h
}
