package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// registry knows who is there: frontends, backends, sub-clusters and models. One goroutine owns
// it (the caller's with Options.Manual); it takes partitions' and rankers' locks one at a time.
//
// Every GPU of a sub-cluster may get any batch of it. So a model is served in a sub-cluster when
// every backend there has it, and a backend that lacks a model served there is refused. A backend
// that names no sub-cluster joins those with the same models. A model has one home at a time.
type registry struct {
	e        *Engine
	fronts   []*Frontend // by slot; nil: free
	gens     []uint32    // generation of each slot
	clusters []*cluster  // by sub-cluster number; 0 is nowhere
	models   []*entry    // by model id
	byName   map[string]uint32
	vacant   []uint32 // ids of forgotten models, the longest forgotten first
	gpuFree  []sched.GPUID
	gpuNext  sched.GPUID
	epoch    uint32         // of the GPU added latest
	ctrl     sched.Duration // in force
	data     sched.Duration
	measured sched.Time
	spare    spare
	windows  int // of the sessions, together
}

type cluster struct {
	name     string
	number   uint32
	backends []*Backend
	gpus     int
}

func (g *registry) start(e *Engine) {
	g.e = e
	g.byName = map[string]uint32{}
	g.clusters = []*cluster{{}}
	g.fronts = []*Frontend{nil} // slot 0 is unused: number 0 means nobody
	g.gens = []uint32{0}
	g.ctrl, g.data = sched.Duration(e.o.Ctrl), sched.Duration(e.o.Data)
}

func (g *registry) addFrontend(f *Frontend) error {
	if err := g.seat(f); err != nil {
		return err
	}
	i := slices.Index(g.fronts[1:], nil) + 1
	if i == 0 {
		if len(g.fronts) == FrontendsMax {
			return fmt.Errorf("%d frontends are connected, at most %d", FrontendsMax-1, FrontendsMax-1)
		}
		i = len(g.fronts)
		g.fronts, g.gens = append(g.fronts, nil), append(g.gens, 0)
	}
	g.windows += int(f.window)
	g.gens[i]++
	f.number = uint32(i) + g.gens[i]*FrontendsMax
	g.fronts[i] = f
	for _, c := range g.clusters {
		for _, b := range c.backends {
			b.port.Peers([]wire.Peer{{Frontend: f.number, DataAddr: f.hello.DataAddr}})
		}
	}
	g.e.fronts[i].Store(f)
	if m := g.e.Models(); len(m) > 0 {
		f.port.Models(m)
	}
	return nil
}

// seat checks the window that a frontend asks for.
func (g *registry) seat(f *Frontend) error {
	f.window = f.hello.Window
	if f.window == 0 {
		f.window = wire.WindowDefault
	}
	if f.window&(f.window-1) != 0 || f.window > wire.WindowMax {
		return fmt.Errorf("frontend hello: window %d, want a power of two up to %d", f.window, wire.WindowMax)
	}
	if g.windows+int(f.window) > windowsMax {
		return fmt.Errorf("frontend hello: window %d, but the other sessions have %d of the %d places there are", f.window, g.windows, windowsMax)
	}
	return nil
}

func (g *registry) removeFrontend(f *Frontend) {
	i := f.number % FrontendsMax
	g.fronts[i] = nil
	g.windows -= int(f.window)
	for _, c := range g.clusters {
		for _, b := range c.backends {
			b.port.Peers([]wire.Peer{{Frontend: f.number}})
		}
	}
}

// addBackend checks a hello and takes the backend in.
func (g *registry) addBackend(b *Backend) error {
	g.forget()
	tables, err := g.check(&b.hello)
	if err != nil {
		return err
	}
	c := g.cluster(clusterName(&b.hello))
	if err := g.fits(c, &b.hello); err != nil {
		return err
	}
	b.sub = c.number
	for i := range b.hello.Models {
		m := &b.hello.Models[i]
		m.Profile = tables[i]
		b.ids = append(b.ids, g.model(&m.Info))
	}
	b.index = make([]uint32, len(g.models))
	for i, id := range b.ids {
		b.index[id] = uint32(i) + 1
	}
	var peers []wire.Peer
	for _, f := range g.fronts {
		if f != nil {
			peers = append(peers, wire.Peer{Frontend: f.number, DataAddr: f.hello.DataAddr})
		}
	}
	if len(peers) > 0 {
		b.port.Peers(peers)
	}
	c.backends = append(c.backends, b)
	c.gpus += len(b.hello.GPUs)
	g.setGPUs(c) // before frontends hear of it: they ask at once
	g.settle()
	g.addGPUs(c, b)
	return nil
}

// check refuses a hello that makes no sense, naming what is wrong. It returns the profiles cut to
// the batch sizes allowed.
func (g *registry) check(h *wire.BackendHello) ([][]int64, error) {
	switch {
	case len(h.GPUs) == 0:
		return nil, errors.New("backend hello: no gpus, want at least one")
	case int(g.gpuNext)+len(h.GPUs)-len(g.gpuFree) > GPUsMax:
		return nil, fmt.Errorf("backend hello: %d gpus more than the %d allowed in all", len(h.GPUs), GPUsMax)
	case len(h.Models) == 0:
		return nil, errors.New("backend hello: no models, want at least one")
	}
	if n := g.fresh(h); n > g.room() {
		return nil, fmt.Errorf("backend hello: %d new models, but there is room for %d of the %d allowed; one that no backend has had for %v is forgotten",
			n, g.room(), ModelsMax, time.Duration(keptMax))
	}
	seen := map[string]bool{}
	tables := make([][]int64, len(h.Models))
	for i := range h.Models {
		m := &h.Models[i]
		key := modelKey(&m.Info)
		if m.Info.Name == "" || seen[key] {
			return nil, fmt.Errorf("backend hello: model %d: name %q version %q is empty or given twice", i, m.Info.Name, m.Info.Version)
		}
		seen[key] = true
		table := m.Profile
		if n := int(m.Info.BatchMax); n > 0 && n < len(table) {
			table = table[:n]
		}
		p, err := newProfile(table)
		if err != nil {
			return nil, fmt.Errorf("backend hello: model %q: %w", m.Info.Name, err)
		}
		if slo := g.slo(&m.Info, table); slo < int64(p.Exec(1)) {
			return nil, fmt.Errorf("backend hello: model %q: SLO %v is shorter than ℓ(1) = %v", m.Info.Name, time.Duration(slo), p.Exec(1))
		}
		tables[i] = table
	}
	return tables, nil
}

// clusterName is the sub-cluster that a hello asks for; without a name, that of its set of models.
func clusterName(h *wire.BackendHello) string {
	if h.SubCluster != "" {
		return h.SubCluster
	}
	var keys []string
	for i := range h.Models {
		keys = append(keys, modelKey(&h.Models[i].Info))
	}
	slices.Sort(keys)
	return "\x00" + fmt.Sprintf("%q", keys)
}

// cluster returns the sub-cluster of a name. One without backends may be named anew.
func (g *registry) cluster(name string) *cluster {
	var unused *cluster
	for _, c := range g.clusters[1:] {
		if c.name == name {
			return c
		}
		if len(c.backends) == 0 {
			unused = c
		}
	}
	if unused != nil {
		unused.name = name
		return unused
	}
	c := &cluster{name: name, number: uint32(len(g.clusters))}
	g.clusters = append(g.clusters, c)
	l := g.e.loops[int(c.number)%len(g.e.loops)]
	r := &ranker{number: c.number, loop: l, s: sched.NewRanker(c.number, sched.Options{Ctrl: g.ctrl, Data: g.data, Prompt: g.e.o.Prompt})}
	r.wake.Store(int64(sched.Never))
	all := append(slices.Clone(*g.e.rankers.Load()), r)
	g.e.rankers.Store(&all)
	mine := append(slices.Clone(*l.rankers.Load()), r)
	l.rankers.Store(&mine)
	return c
}

// fits refuses a backend that lacks a model which its sub-cluster serves, or has another of the
// same name.
func (g *registry) fits(c *cluster, h *wire.BackendHello) error {
	has := map[string]bool{}
	for i := range h.Models {
		m := &h.Models[i].Info
		has[modelKey(m)] = true
		id, known := g.byName[modelKey(m)]
		if !known || g.models[id].home == 0 {
			continue
		}
		if old := &g.models[id].info; !sameTensors(old.Inputs, m.Inputs) || !sameTensors(old.Outputs, m.Outputs) {
			return fmt.Errorf("backend hello: model %q version %q: its inputs or outputs differ from those that other backends serve; give it another version", m.Name, m.Version)
		}
	}
	for _, m := range g.models {
		if m.home == c.number && len(c.backends) > 0 && !has[modelKey(&m.info)] {
			return fmt.Errorf("backend hello: sub-cluster %q serves model %q version %q, which this backend lacks; add it or name another sub-cluster", c.name, m.info.Name, m.info.Version)
		}
	}
	return nil
}

func sameTensors(a, b []wire.Tensor) bool {
	return slices.EqualFunc(a, b, func(x, y wire.Tensor) bool {
		return x.Name == y.Name && x.Datatype == y.Datatype && slices.Equal(x.Shape, y.Shape)
	})
}

// setGPUs tells every partition how many GPUs a sub-cluster has.
func (g *registry) setGPUs(c *cluster) {
	for _, p := range g.e.parts {
		p.mu.Lock()
		p.s.SetGPUs(g.e.clock.Now(), c.number, c.gpus)
		p.mu.Unlock()
	}
}

// addGPUs gives a backend's GPUs numbers and lets the ranker grant them.
func (g *registry) addGPUs(c *cluster, b *Backend) {
	r := g.e.ranker(c.number)
	for i, name := range b.hello.GPUs {
		id := g.gpuNext
		if n := len(g.gpuFree); n > 0 {
			id, g.gpuFree = g.gpuFree[n-1], g.gpuFree[:n-1]
		} else {
			g.gpuNext++
		}
		g.epoch++
		u := &gpu{id: id, index: uint32(i), epoch: g.epoch, sub: c.number, b: b, name: name}
		b.gpus = append(b.gpus, u)
		g.e.gpus[id].Store(u)
	}
	t := g.e.begin(&g.spare)
	r.enter(t)
	for _, u := range b.gpus {
		if err := r.s.AddGPU(t.now, u.id, u.epoch); err != nil {
			g.e.log.Error("gpu not added", "gpu", u.name, "err", err)
		}
	}
	r.advance(g.e, t)
	r.mu.Unlock()
	g.e.finish(t)
}

// removeBackend takes a backend out and gives back what it held.
func (g *registry) removeBackend(b *Backend) {
	c := g.clusters[b.sub]
	b.dead.Store(true)
	r := g.e.ranker(c.number)
	now := g.e.clock.Now()
	r.mu.Lock()
	for _, u := range b.gpus {
		r.s.RemoveGPU(now, u.id)
	}
	r.mu.Unlock()
	c.gpus -= len(b.gpus)
	c.backends = slices.DeleteFunc(c.backends, func(x *Backend) bool { return x == b })
	g.setGPUs(c)
	for _, id := range b.ids {
		g.models[id].since = now
	}
	g.settle()
	for _, p := range g.e.parts {
		t := g.e.begin(&g.spare)
		p.enter(t)
		p.lose(g.e, t, b)
		p.collect(g.e, t)
		p.mu.Unlock()
		g.e.finish(t)
	}
	for _, u := range b.gpus {
		g.e.gpus[u.id].Store(nil)
		g.gpuFree = append(g.gpuFree, u.id)
	}
}

// measure puts the network delays in force that the worst backend measured, when the options name
// none.
func (g *registry) measure(now sched.Time) {
	if now.Sub(g.measured) < sched.Duration(time.Second) {
		return
	}
	g.measured = now
	ctrl, data := g.delays()
	if g.e.o.Ctrl > 0 {
		ctrl = sched.Duration(g.e.o.Ctrl)
	}
	if g.e.o.Data > 0 {
		data = sched.Duration(g.e.o.Data)
	}
	if near(ctrl, g.ctrl) && near(data, g.data) {
		return
	}
	g.ctrl, g.data = ctrl, data
	for _, r := range *g.e.rankers.Load() {
		r.mu.Lock()
		r.s.SetNetworkDelay(ctrl, data)
		r.mu.Unlock()
	}
	for _, p := range g.e.parts {
		t := g.e.begin(&g.spare)
		p.enter(t)
		p.s.SetNetworkDelay(t.now, ctrl, data)
		p.collect(g.e, t)
		p.mu.Unlock()
		g.e.finish(t)
	}
}

// near says whether a delay need not be replaced: within a tenth or 10 µs.
func near(a, b sched.Duration) bool {
	d := max(a, b) - min(a, b)
	return d <= 10_000 || d*10 <= max(a, b)
}
