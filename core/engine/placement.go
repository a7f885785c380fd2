package engine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/wire"
)

// Models are loaded and unloaded while a backend serves. A GPU's sub-cluster changes with its loaded models.

// Place asks the backend of a name to load, update or unload models. Reports follow later; Backends returns the
// state.
func (e *Engine) Place(backend string, m []wire.Placement) error {
	var b *Backend
	if err := e.runInRegistry(func() { b = e.reg.backend(backend) }); err != nil {
		return err
	}
	if b == nil {
		return fmt.Errorf("place models: backend %q: not connected", backend)
	}
	b.port.Place(m)
	return nil
}

// Offer takes new or changed models that the backend can load. It returns false if the session is closed or a model
// is invalid.
func (b *Backend) Offer(m []wire.Loadable) bool {
	ok := true
	err := b.e.runInRegistry(func() {
		for i := range m {
			ok = ok && b.e.reg.noteOffered(b, &m[i])
		}
	})
	return ok && err == nil
}

// Report takes the state of models on the backend's GPUs, under the same rules.
func (b *Backend) Report(m []wire.PlacementReport) bool {
	ok := true
	err := b.e.runInRegistry(func() {
		for i := range m {
			ok = ok && b.e.reg.notePlaced(b, &m[i])
		}
	})
	return ok && err == nil
}

// backend returns the backend of a name; nil if there is none.
func (g *registry) backend(name string) *Backend {
	if i := slices.IndexFunc(g.backends, func(b *Backend) bool { return b.name == name }); i >= 0 {
		return g.backends[i]
	}
	return nil
}

// noteOffered records a model that a backend can load.
func (g *registry) noteOffered(b *Backend, l *wire.Loadable) bool {
	n := int(l.Number)
	switch {
	case b.dead.Load():
		return false
	case n > len(b.hello.Models) || n >= wire.ModelsMax || l.Model.Info.Name == "":
		return false
	case n == len(b.hello.Models):
		// The next unused number is a new model, which is loaded nowhere yet.
		b.hello.Models = append(b.hello.Models, wire.BackendModel{Loaded: make([]bool, len(b.hello.GPUs))})
		b.ids = append(b.ids, noModel)
	}

	m := &b.hello.Models[n]
	if m.Info.Name != "" && modelKey(&m.Info) != modelKey(&l.Model.Info) {
		g.clearNumber(b, n)
	}
	m.Info, m.Profile = l.Model.Info, l.Model.Profile

	// A backend that tells no load time may have reported one.
	m.Load = cmp.Or(l.Model.Load, m.Load)

	// A model may be offered before it is profiled, but not with a bad profile.
	if len(m.Profile) > 0 {
		if _, err := profile.New(m.Profile); err != nil {
			return false
		}
	}

	// Properties that clients see of a served model, such as its labels or its SLO, follow its files.
	if id, known := g.byName[modelKey(&m.Info)]; known && g.models[id].served() && g.sameAsServed(m) {
		e := g.models[id]
		if e.info.QueueMax != m.Info.QueueMax {
			e.homes = slices.Clone(e.homes)
			e.homes[0].table = nil // makes settleHomes put the limit in force
		}
		e.describeModel(&m.Info)
		e.news = true
	}

	if b.ids[n] != noModel { // it is loaded unchanged: the new description holds
		g.dropModel(b, n)
		g.takeUp(b, n)
		g.placeGPUs(b)
	}
	return true
}

// clearNumber forgets the model of a number that names another one from now on. What was known of it, and steps of a plan
// that are to use the number, belong to the former model.
func (g *registry) clearNumber(b *Backend, n int) {
	m := &b.hello.Models[n]
	m.Loaded, m.Load = make([]bool, len(b.hello.GPUs)), 0
	for i := range b.hello.GPUs {
		delete(b.leaving, resident{n, i})
		delete(b.withheld, resident{n, i})
	}

	for _, w := range slices.Clone(g.rollout.work) {
		if w.b == b && w.at.model == n {
			g.leaveOut(w, nil, modelGone)
		}
	}

	// A session that began with an earlier hello has it loaded.
	if b.ids[n] != noModel {
		g.dropModel(b, n)
		g.placeGPUs(b)
	}
}

// notePlaced records the state of a model on a GPU.
func (g *registry) notePlaced(b *Backend, r *wire.PlacementReport) bool {
	if b.dead.Load() || int(r.Model) >= len(b.hello.Models) || int(r.GPU) >= len(b.hello.GPUs) {
		return false
	}
	m := &b.hello.Models[r.Model]
	if n, ok := wire.PlanOf(r.Number); ok {
		g.toldPlan = max(g.toldPlan, n)
	}

	// Without a list, the model is loaded on all GPUs.
	if m.Loaded == nil {
		m.Loaded = slices.Repeat([]bool{true}, len(b.hello.GPUs))
	}

	switch r.State {
	case wire.LoadFailed:
		g.orderReported(r)
		g.advanceRollout(g.e.clock.Now())
		g.e.log.Warn("model not loaded", "backend", b.name, "gpu", b.hello.GPUs[r.GPU], "model", m.Info.Name, "version", m.Info.Version, "err", r.Text)
		return true
	case wire.Loaded:
		m.Loaded[r.GPU] = true
		b.noteLoad(m, r)
	default:
		// While it loads or unloads, the GPU must get no batch of the model.
		m.Loaded[r.GPU] = false
		b.noteLeave(r)
	}

	// The catalogue has a model of this backend while at least one of its GPUs holds it.
	switch somewhere := loadedSomewhere(m); {
	case somewhere && b.ids[r.Model] == noModel:
		g.takeUp(b, int(r.Model))
		if m.Info.HasClasses() {
			g.shareClasses(b, m.Info.Name)
		}
	case !somewhere && b.ids[r.Model] != noModel:
		g.dropModel(b, int(r.Model))
	}

	// The GPU may have moved to another sub-cluster, and the plan may have its next step.
	g.placeGPUs(b)
	g.orderReported(r)
	g.advanceRollout(g.e.clock.Now())
	return true
}

// noteLoad records the time and memory of a load.
func (b *Backend) noteLoad(m *wire.BackendModel, r *wire.PlacementReport) {
	delete(b.leaving, resident{int(r.Model), int(r.GPU)})
	m.Info.Static, m.Info.Dynamic = max(m.Info.Static, r.Static), max(m.Info.Dynamic, r.Dynamic)

	// A report without a time says nothing about the load.
	m.Load = cmp.Or(time.Duration(r.Load+r.WarmUp), m.Load)
}

// noteLeave records that a model is being unloaded, or has been.
func (b *Backend) noteLeave(r *wire.PlacementReport) {
	at := resident{int(r.Model), int(r.GPU)}
	if r.State == wire.Unloaded {
		delete(b.leaving, at)
		delete(b.withheld, at)
		return
	}
	if b.leaving == nil {
		b.leaving = map[resident]bool{}
	}
	b.leaving[at] = true
}

// takeUp lets a backend's GPUs get batches of a model that they have loaded, or logs why not.
func (g *registry) takeUp(b *Backend, n int) {
	m := &b.hello.Models[n]
	table, err := g.checkModel(m)
	id, known := g.byName[modelKey(&m.Info)]
	if !known && g.roomForModels() < 1 {
		g.forgetModels()
	}

	switch {
	case err != nil:
	case !known && g.roomForModels() < 1:
		err = fmt.Errorf("there is no room for another of the %d models allowed", ModelsMax)
	case !g.sameAsServed(m):
		err = errors.New("its inputs or outputs differ from those that other backends serve; give it another version")
	}
	if err != nil {
		// The backend still serves its other models.
		g.e.log.Error("model not served", "backend", b.name, "model", m.Info.Name, "version", m.Info.Version, "err", err)
		return
	}

	// The model no longer counts among those that the backend failed to load.
	m.Profile = table
	if known {
		b.failed = slices.DeleteFunc(b.failed, func(x uint32) bool { return x == id })
	}
	b.ids[n] = g.model(&m.Info)
	if e := g.models[b.ids[n]]; e.info.Accuracy != m.Info.Accuracy {
		e.info.Accuracy, e.news = m.Info.Accuracy, true // it may change while others serve the model
	}
}

// dropModel stops batches of a model to a backend's GPUs. Batches in flight end normally.
func (g *registry) dropModel(b *Backend, n int) {
	g.models[b.ids[n]].since = g.e.clock.Now()
	b.ids[n] = noModel
}

// sameAsServed reports whether a backend's model has the same inputs and outputs as the one that others serve.
func (g *registry) sameAsServed(m *wire.BackendModel) bool {
	id, known := g.byName[modelKey(&m.Info)]
	if !known || !g.models[id].served() {
		return true
	}
	old := &g.models[id].info
	return model.SameTensors(old.Inputs, m.Info.Inputs) && model.SameTensors(old.Outputs, m.Info.Outputs)
}
