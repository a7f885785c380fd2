package executor

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"downbeat.dev/cuda"
	"downbeat.dev/cuda/kernels"
	"downbeat.dev/cuda/layers"
	"downbeat.dev/cuda/residency"
)

// Config bounds a Runtime.
type Config struct {
	DeviceBytes int64   // for parameters and activations together
	PinnedBytes int64   // for evicted parameters
	Alpha       float64 // of the eviction score; 0: the paper's 0.4
	// Hang is the longest time of a copy of evicted parameters, after which the device counts as hanging; 0:
	// unlimited.
	Hang      time.Duration
	Capture   bool   // run batches as captured graphs
	Tune      bool   // time the options of each step when a plan is made, and use the fastest
	Libraries string // folders of cuBLASLt and cuDNN, separated by colons, before the usual ones; "none" for neither
	Prefer    string // use the options whose label has this prefix, if there are any: to test one
}

// Runtime holds the state that the models of one device share.
type Runtime struct {
	dev     *cuda.Device
	cfg     Config
	kernels *kernels.Set
	store   *residency.Store
	start   time.Time
	chosen  map[string]string // the label of the chosen option, by computation
	shared  map[contentKey]*sharedContent

	libraries *cuda.Libraries
	asked     map[string][]asked // by computation
}

// Open loads the kernels and reserves memory.
func Open(dev *cuda.Device, c Config) (*Runtime, error) {
	set, err := kernels.Load(dev)
	if err != nil {
		return nil, fmt.Errorf("open executor: %w", err)
	}

	store, err := residency.Open(dev, residency.Config{DeviceBytes: c.DeviceBytes, PinnedBytes: c.PinnedBytes, Alpha: c.Alpha, Hang: c.Hang})
	if err != nil {
		set.Free()
		return nil, fmt.Errorf("open executor: %w", err)
	}

	libraries := &cuda.Libraries{}
	if c.Libraries != "none" {
		if libraries, err = dev.OpenLibraries(c.Libraries); err != nil {
			store.Close()
			set.Free()
			return nil, fmt.Errorf("open executor: %w", err)
		}
	}

	return &Runtime{dev: dev, cfg: c, libraries: libraries, asked: map[string][]asked{}, kernels: set, store: store, start: time.Now(), chosen: map[string]string{}, shared: map[contentKey]*sharedContent{}}, nil
}

// Stats returns the counts of the residency store.
func (r *Runtime) Stats() residency.Stats { return r.store.Stats() }

// Close frees everything; models must be closed and nothing may run.
func (r *Runtime) Close() {
	r.forgetLibraries()
	r.store.Close()
	r.kernels.Free()
}

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

// plan is a layers.Plan with the executor's state for it.
type plan struct {
	*layers.Plan
	params   []place          // of each of Params
	contents []residency.ID   // of all layers, without duplicates, then the activations
	byLayer  [][]residency.ID // of each layer
	work     residency.ID     // the activations
	hasWork  bool
	launches [][]launch // of each layer
	captured map[key]*captured
}

// key identifies the memory of a batch's tensors: graphs contain addresses.
type key struct{ in, out cuda.Address }

type captured struct {
	graph *cuda.Graph
	base  []cuda.Address
}

// Options of Load.
type Options struct {
	BatchMax  int
	SLO       time.Duration    // the model's, for the eviction score
	Precision layers.Precision // how parameters and activations are stored
	// Share lets a layer whose parameters are, byte for byte, those of a layer of another sharing model use that
	// model's copy: an early exit and its model hold their common parameters once. Such a model cannot be updated in
	// place.
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

func (m *Model) planFor(batch int) (*plan, error) {
	if batch < 1 || batch > m.max {
		return nil, fmt.Errorf("batch of %d: must be 1 to %d", batch, m.max)
	}
	if p := m.plans[batch-1]; p != nil {
		return p, nil
	}

	// Compilation takes long and uses no state shared by models.
	var compiled *layers.Plan
	var err error
	m.yieldRuntime(func() { compiled, err = layers.Compile(m.graph, batch, m.real) })
	if err != nil {
		return nil, err
	}

	p := &plan{Plan: compiled, captured: map[key]*captured{}}
	if err := m.settleContents(p); err != nil {
		return nil, err
	}

	// A plan without memory is not kept: the next batch of this size tries again.
	m.plans[batch-1] = p
	return p, nil
}

// settleContents adds p's parameters and activations to the store: one content for each layer's.
func (m *Model) settleContents(p *plan) error {
	// Choose first, because this may add a workspace and counters to the plan.
	if err := m.chooseLaunches(p); err != nil {
		return err
	}

	seen := map[residency.ID]bool{}
	for i := range p.Layers {
		l := &p.Layers[i]
		if err := m.packParameters(p.Plan, l); err != nil {
			return err
		}

		// A layer that runs alone needs its own list; a batch needs each content once, whichever layers share it.
		var ids []residency.ID
		for _, k := range l.Params {
			id := m.params[p.Params[k].Name].content
			if !seen[id] {
				seen[id] = true
				p.contents = append(p.contents, id)
			}
			ids = append(ids, id)
		}
		p.byLayer = append(p.byLayer, ids)
	}

	for k := range p.Params {
		p.params = append(p.params, m.params[p.Params[k].Name])
	}

	if p.ActivationBytes == 0 {
		return nil
	}

	// One block holds all activations of a batch, from Enqueue to Release (E1).
	id, err := m.r.store.Add(residency.Content{Name: m.graph.Name + "/activations", Kind: residency.Intermediates,
		Bytes: p.ActivationBytes, SLO: m.slo}, nil)
	if err != nil {
		return fmt.Errorf("activations of a batch of %d: %w", p.Batch, err)
	}

	p.work, p.hasWork = id, true
	p.contents = append(p.contents, id)
	return nil
}

const paramAlign = 256

// packParameters packs the parameters that belong only to this layer into one content.
func (m *Model) packParameters(p *layers.Plan, l *layers.Layer) error {
	var data []byte
	fresh := map[string]int64{}
	for _, k := range l.Params {
		param := &p.Params[k]

		// An earlier layer, or another batch size, has already added this parameter.
		if _, known := m.params[param.Name]; known {
			continue
		}
		if _, twice := fresh[param.Name]; twice {
			continue
		}

		// Kernels read each parameter at a multiple of paramAlign, as if it had its own allocation.
		for len(data)%paramAlign != 0 {
			data = append(data, 0)
		}
		fresh[param.Name] = int64(len(data))
		data = append(data, param.Data...)
	}

	if len(data) == 0 {
		return nil
	}

	id, err := m.addContent(residency.Content{Name: m.graph.Name + "/" + l.Name, Kind: residency.Parameters, Bytes: int64(len(data)), SLO: m.slo}, data)
	if err != nil {
		return fmt.Errorf("parameters of layer %q: %w", l.Name, err)
	}

	for name, off := range fresh {
		m.params[name] = place{id, off}
	}
	return nil
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
		if p.hasWork {
			remove(p.work)
		}
	}

	for _, id := range m.ownContents() {
		remove(id)
	}

	m.plans, m.params = nil, nil
	return errors.Join(errs...)
}
