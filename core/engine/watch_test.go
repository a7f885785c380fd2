package engine

import (
	"math"
	"testing"
	"time"

	"downbeat.dev/core/invariants"
	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// watch follows the messages through the ports of a stage's engine, so that each test and script also checks the
// rules of package invariants.
type watch struct {
	invariants.Observer
	s       *stage
	lives   map[requestKey]*watched
	flights map[uint64]*watchedBatch // by number on the wire
	gpus    map[watchedGPU]*invariants.GPU
}

type requestKey struct {
	frontend uint32
	id       uint64
}

type watchedGPU struct {
	b   *emulated
	gpu uint32
}

type watched struct {
	invariants.Life
	lost bool // it returned from a backend; the failure is told at its end, however late that is
}

type watchedBatch struct {
	gpu   watchedGPU
	items []requestKey
}

func (s *stage) newWatch(t testing.TB) *watch {
	return &watch{Observer: invariants.Observer{Object: t.Errorf}, s: s, lives: map[requestKey]*watched{}, flights: map[uint64]*watchedBatch{}, gpus: map[watchedGPU]*invariants.GPU{}}
}

func (w *watch) life(k requestKey) *watched {
	if w.lives[k] == nil {
		w.lives[k] = &watched{}
	}
	return w.lives[k]
}

// submits is called before the engine takes a Submit. A request whose id is queued may be a duplicate, or a second
// request after the id's entry was overwritten.
func (w *watch) submits(frontend uint32, m []wire.Submit) {
	for i := range m {
		x := w.life(requestKey{frontend, m[i].ID})
		deadline := int64(w.s.clock.now.Add(sched.Duration(max(0, min(m[i].Budget, sched.SLOLimit)))))
		if x.Queued > 0 || x.Running > 0 {
			x.Suspect(deadline)
			continue
		}
		x.lost = false
		x.Queue(deadline)
	}
}

// ends is called for an outcome.
func (w *watch) ends(frontend uint32, m *wire.Outcome) {
	x := w.life(requestKey{frontend, m.ID})
	if !x.lost {
		w.Overdue(&x.Life, uint64(frontend), m.ID, int64(w.s.clock.now))
	}
	w.End(&x.Life, uint64(frontend), m.ID, "ended as "+m.Reason.String())
}

// leaves is called when a frontend's session closes. No message may name it afterwards.
func (w *watch) leaves(frontend uint32) {
	for k, x := range w.lives {
		if k.frontend == frontend {
			*x = watched{Life: invariants.Life{Running: x.Running}}
		}
	}
}

// runs is called for an order.
func (w *watch) runs(b *emulated, x *wire.Execute, profile []time.Duration) {
	now, n := w.s.clock.now, len(x.Items)
	start := now.Add(sched.Duration(x.Start))
	planned := invariants.Batch{ID: x.Batch, Size: n, Most: len(profile), Arrives: int64(now), Start: int64(start),
		Latest: int64(now.Add(sched.Duration(x.Latest))), Finish: int64(start.Add(sched.Duration(profile[min(max(n, 1), len(profile))-1])))}

	f := &watchedBatch{gpu: watchedGPU{b, x.GPU}}
	if w.gpus[f.gpu] == nil {
		w.gpus[f.gpu] = &invariants.GPU{}
	}
	w.Send(w.gpus[f.gpu], planned)
	for _, i := range x.Items {
		k := requestKey{i.Frontend, i.ID}
		f.items = append(f.items, k)
		w.End(&w.life(k).Life, uint64(i.Frontend), i.ID, "is in a batch")
		w.life(k).Running++

		// Budgets are in microseconds, rounded down.
		w.Keeps(&planned, uint64(i.Frontend), i.ID, int64(now)+int64(i.Budget)*1000+999)
	}
	w.flights[x.Batch] = f
}

// reports is called before the engine takes a Done. A Done that names no batch in flight on its GPU is ignored.
func (w *watch) reports(b *emulated, m *wire.Done) {
	f := w.flights[m.Batch]
	if f == nil || f.gpu != (watchedGPU{b, m.GPU}) {
		return
	}
	delete(w.flights, m.Batch)
	w.gpus[f.gpu].Complete(m.Batch, int64(w.s.clock.now)+min(max(m.FreeIn, 0), int64(time.Hour)))
	for _, k := range f.items {
		w.life(k).Running--
	}

	for _, x := range m.Failures {
		if int(x.Index) < len(f.items) && (x.Untold || x.Reason == model.BackendLost || x.Reason == model.NoBackend) {
			w.returns(f.items[x.Index])
		}
	}
}

// returns is called when a request is queued again, unless its id's entry was overwritten.
func (w *watch) returns(k requestKey) {
	x := w.life(k)
	x.lost = true
	x.Suspect(math.MinInt64)
}

// closes is called before a backend's session closes. Its requests return.
func (w *watch) closes(b *emulated) {
	for id, f := range w.flights {
		if f.gpu.b != b {
			continue
		}
		delete(w.flights, id)
		for _, k := range f.items {
			w.life(k).Running--
			w.returns(k)
		}
	}
}
