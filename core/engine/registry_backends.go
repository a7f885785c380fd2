package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/limits"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// addBackend checks a hello and adds the backend.
func (g *registry) addBackend(b *Backend) error {
	// Forgetting old models makes room for the new ones.
	g.forgetModels()
	tables, err := g.checkHello(&b.hello)
	if err != nil {
		return err
	}

	// A model that is not loaded yet has no id: its profile may still be unknown.
	for n := range b.hello.Models {
		id := noModel
		if m := &b.hello.Models[n]; loadedSomewhere(m) {
			m.Profile = tables[n]
			id = g.model(&m.Info)
		}
		b.ids = append(b.ids, id)
	}
	g.noteFailed(b)

	var peers []wire.Peer
	for _, f := range g.fronts {
		if f != nil {
			peers = append(peers, f.asPeer())
		}
	}
	peers = append(peers, g.otherNodes()...)

	// Peers go out before GPUs are placed: the first batch must find its frontends known.
	if len(peers) > 0 {
		b.port.Peers(peers)
	}

	g.nameNode(b)
	g.nameBackend(b)

	// There are few groups. Requests that avoid this backend also avoid the others of its group, so take the least
	// used.
	b.group = sched.LeastUsedGroup(g.usedGroups())
	g.backends = append(g.backends, b)
	b.gpus = make([]*gpu, len(b.hello.GPUs))
	g.placeGPUs(b)
	g.adviseSlow(b)
	g.shareClasses(b, "")
	return nil
}

// checkHello refuses an invalid hello and names the error. It returns the profiles, cut to the allowed batch sizes.
func (g *registry) checkHello(h *wire.BackendHello) ([][]time.Duration, error) {
	switch {
	case len(h.GPUs) == 0:
		return nil, errors.New("backend hello: no gpus, want at least one")
	case int(g.gpuNext)+len(h.GPUs)-len(g.gpuFree) > len(g.e.gpus):
		return nil, fmt.Errorf("backend hello: %d gpus more than the %d allowed in all", len(h.GPUs), len(g.e.gpus))
	case len(h.Details) != 0 && len(h.Details) != len(h.GPUs):
		return nil, fmt.Errorf("backend hello: details of %d gpus, the backend has %d", len(h.Details), len(h.GPUs))
	case len(h.Models) == 0 && h.Version < commandVersion:
		return nil, errors.New("backend hello: no models, want at least one")
	}

	// The catalogue is bounded, and a hello is accepted whole or not at all.
	if n := g.countNewModels(h); n > g.roomForModels() {
		return nil, fmt.Errorf("backend hello: %d new models, but there is room for %d of the %d allowed; one that no backend has had for %v is forgotten",
			n, g.roomForModels(), ModelsMax, time.Duration(keptMax))
	}

	// Models that are loaded need a valid profile and the tensors that others announce.
	seen := map[string]bool{}
	tables := make([][]time.Duration, len(h.Models))
	for i := range h.Models {
		m := &h.Models[i]
		key := modelKey(&m.Info)
		if m.Info.Name == "" || seen[key] {
			return nil, fmt.Errorf("backend hello: model %d: name %q version %q is empty or given twice", i, m.Info.Name, m.Info.Version)
		}
		seen[key] = true

		if len(m.Loaded) != 0 && len(m.Loaded) != len(h.GPUs) {
			return nil, fmt.Errorf("backend hello: model %q: loaded on %d gpus, the backend has %d", m.Info.Name, len(m.Loaded), len(h.GPUs))
		}
		if !loadedSomewhere(m) {
			continue // its profile may be unknown yet
		}
		if !g.sameAsServed(m) {
			return nil, fmt.Errorf("backend hello: model %q version %q: its inputs or outputs differ from those that other backends serve; give it another version", m.Info.Name, m.Info.Version)
		}
		table, err := g.checkModel(m)
		if err != nil {
			return nil, fmt.Errorf("backend hello: %w", err)
		}
		tables[i] = table
	}

	for i := range h.Failed {
		m := &h.Failed[i]
		key := modelKey(m)

		// Frontends that ask for such a model are told the reason, so there must be one.
		if m.Name == "" || m.Reason == "" || seen[key] {
			return nil, fmt.Errorf("backend hello: failed model %d: name %q version %q and its reason are empty, or it is given twice", i, m.Name, m.Version)
		}
		seen[key] = true
	}

	return tables, nil
}

// noteFailed makes models known that a backend should serve and cannot, so that frontends are told why.
func (g *registry) noteFailed(b *Backend) {
	for i := range b.hello.Failed {
		m := &b.hello.Failed[i]
		if id, known := g.byName[modelKey(m)]; known && g.models[id].served() {
			continue // another backend serves it
		}
		id := g.model(m)
		b.failed = append(b.failed, id)
		g.models[id].news = true
	}
}

// checkModel refuses a model that cannot be served as described. It returns the profile, cut to the allowed batch
// sizes.
func (g *registry) checkModel(m *wire.BackendModel) (table []time.Duration, err error) {
	table = m.Profile
	if n := int(m.Info.BatchMax); n > 0 && n < len(table) {
		table = table[:n]
	}

	p, err := profile.New(table)
	if err != nil {
		return nil, fmt.Errorf("model %q: %w", m.Info.Name, err)
	}

	// With an SLO below a batch of one, every request would be dropped.
	switch slo := g.slo(&m.Info, table); {
	case slo < int64(p.Exec(1)):
		return nil, fmt.Errorf("model %q: SLO %v is shorter than ℓ(1) = %v", m.Info.Name, time.Duration(slo), p.Exec(1))
	case slo > sched.SLOLimit:
		return nil, fmt.Errorf("model %q: SLO %v, want at most %v", m.Info.Name, time.Duration(slo), time.Duration(sched.SLOLimit))
	}
	return table, nil
}

// removeBackend removes a backend and requeues or ends its requests.
func (g *registry) removeBackend(b *Backend) {
	// This comes first: from here on no partition sends it a batch.
	b.dead.Store(true)
	now := g.e.clock.Now()
	g.backends = slices.DeleteFunc(g.backends, func(x *Backend) bool { return x == b })
	g.passName(b)
	g.forgetNode(b)

	// A GPU for which there was no sub-cluster was never placed.
	gpus := slices.DeleteFunc(slices.Clone(b.gpus), func(u *gpu) bool { return u == nil })

	for _, u := range gpus {
		g.retireGPU(u)
		g.clusters[u.sub].removeGPU(u)
	}
	g.countGPUs(gpus)

	// A model that no other backend has stays known for keptMax from now on.
	for _, id := range slices.Concat(b.ids, b.failed) {
		if id != noModel {
			g.models[id].since = now
		}
	}

	g.settleHomes()
	g.adviseUnused()
	g.abandonCommands(b)
	g.abandonSpare(b)

	// Requests on the lost GPUs go to others, or end with a reason.
	for _, p := range g.e.parts {
		t := g.e.beginTurn(&g.spare)
		p.enter(t)
		p.loseBackend(g.e, t, b)
		p.collectOutputs(g.e, t)
		p.mu.Unlock()
		g.e.finishTurn(t)
	}

	// Ids are free only now: until its batches were taken back, a partition could still look up the GPU.
	for _, u := range gpus {
		g.e.gpus[u.id].Store(nil)
		g.gpuFree = append(g.gpuFree, u.id)
	}
}

// applyDelays puts the network delays of the slowest backend in force, unless the options set them.
func (g *registry) applyDelays(now sched.Time) {
	if now.Sub(g.measured) < sched.Duration(limits.DelaysEvery) {
		return
	}
	g.measured = now
	g.applyLeastTrip()

	ctrl, data := g.delays()
	if g.e.o.Ctrl > 0 {
		ctrl = sched.Duration(g.e.o.Ctrl)
	}
	if g.e.o.Data > 0 {
		data = sched.Duration(g.e.o.Data)
	}

	// A change makes every partition plan again, so small ones are left out.
	if limits.Near(ctrl, g.ctrl) && limits.Near(data, g.data) {
		return
	}
	g.ctrl, g.data = ctrl, data

	for _, r := range *g.e.rankers.Load() {
		r.mu.Lock()
		r.s.SetNetworkDelay(ctrl, data)
		r.mu.Unlock()
	}

	for _, p := range g.e.parts {
		t := g.e.beginTurn(&g.spare)
		p.enter(t)
		p.s.SetNetworkDelay(t.now, ctrl, data)
		p.collectOutputs(g.e, t)
		p.mu.Unlock()
		g.e.finishTurn(t)
	}
}
