package executor

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"downbeat.dev/cuda"
	"downbeat.dev/cuda/layers"
	"downbeat.dev/cuda/residency"
)

// Model is a graph that is ready to run.
type Model struct {
	r       *Runtime
	graph   *layers.Graph
	real    layers.Precision
	slo     time.Duration
	max     int
	params  map[string]place // by name, of all plans
	share   bool             // Options.Share
	held    []contentKey     // of contents that other models may also hold, one for each use
	plans   []*plan          // by batch − 1; nil until first used
	scratch []cuda.Address
	bound   []byte
	shared  sync.Locker // set while the model is being loaded; nil: no other goroutine waits
}

// yieldRuntime runs f, which uses no state shared by models, while others may use the Runtime.
func (m *Model) yieldRuntime(f func()) {
	if m.shared == nil {
		f()
		return
	}

	// Batches of loaded models continue during f.
	m.shared.Unlock()
	defer m.shared.Lock()
	f()
}

// place is the position of a parameter: a content of the store, and an offset.
type place struct {
	content residency.ID
	offset  int64
}

// Options of Load.
type Options struct {
	BatchMax  int
	SLO       time.Duration    // the model's, for the eviction score
	Precision layers.Precision // how parameters and activations are stored
	// Share lets a layer whose parameters are, byte for byte, those of a layer of another sharing model use that
	// model's copy: an early exit and its model hold their common parameters once.
	Share bool
	// Shared guards the Runtime, and Load's caller holds it. Load releases it now and then, so that batches of other
	// models continue. nil: no other goroutine uses the Runtime meanwhile.
	Shared sync.Locker
}

// Load prepares a model: it compiles the largest and the smallest batch, so that errors in the graph show now, and
// adds its parameters to the store.
func (r *Runtime) Load(g *layers.Graph, o Options) (*Model, error) {
	if o.BatchMax < 1 || o.BatchMax > layers.BatchMax {
		return nil, fmt.Errorf("load %q: batch max %d: must be 1 to %d", g.Name, o.BatchMax, layers.BatchMax)
	}
	if o.Precision > layers.BF16 {
		return nil, fmt.Errorf("load %q: %v: want fp32, fp16 or bf16", g.Name, o.Precision)
	}
	if err := r.kernels.Require(o.Precision.Real()); err != nil {
		return nil, fmt.Errorf("load %q in %v: %w", g.Name, o.Precision, err)
	}

	m := &Model{r: r, graph: g, real: o.Precision, slo: o.SLO, max: o.BatchMax, params: map[string]place{}, plans: make([]*plan, o.BatchMax), share: o.Share, shared: o.Shared}
	defer func() { m.shared = nil }()

	// The other sizes are compiled when they are first used.
	for _, n := range []int{o.BatchMax, 1} {
		if _, err := m.planFor(n); err != nil {
			return nil, errors.Join(fmt.Errorf("load %q: %w", g.Name, err), m.Close())
		}
	}
	return m, nil
}

// Plan returns the plan for a batch size, and compiles it at its first use.
func (m *Model) Plan(batch int) (*layers.Plan, error) {
	p, err := m.planFor(batch)
	if err != nil {
		return nil, err
	}
	return p.Plan, nil
}

// Close removes the model; none of its batches may be under way.
func (m *Model) Close() error {
	gone := map[residency.ID]bool{}
	var errs []error

	// Several parameters share one content, which is removed once.
	remove := func(id residency.ID) {
		if !gone[id] {
			gone[id] = true
			errs = append(errs, m.r.store.Remove(id))
		}
	}

	for _, p := range m.plans {
		if p == nil {
			continue
		}
		for _, c := range p.captured {
			c.graph.Free()
		}
		if p.work == nil {
			continue
		}
		if p.work.users--; p.work.users == 0 {
			remove(p.work.id)
		}
	}

	// Contents that other models hold stay.
	for _, id := range m.releaseContents() {
		remove(id)
	}

	m.plans, m.params = nil, nil
	return errors.Join(errs...)
}
