package engine

import (
	"slices"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// The registry's catalogue of models: ids, homes, profiles.

// entry is the model that an id stands for: one that some backend has or had, or none.
type entry struct {
	info  model.Info       // empty name: the model was forgotten
	since sched.Time       // when its last backend left, or when it was forgotten
	homes []home           // the sub-clusters that serve it, by number; empty: none does
	last  *profile.Profile // the latest profile of any home
	slo   int64            // the SLO in force
	news  bool             // info has changed and frontends have not been told

	chooses bool   // it can choose among variants or homes
	unrated bool   // it is in a family without an accuracy, and that was logged
	class   *class // it is a class of a family; nil: a plain model
}

func (m *entry) served() bool { return len(m.homes) > 0 }

const (
	// keptMax is how long a model stays known after its last backend left. Until then its requests are rejected as
	// unavailable, and a returning backend finds its state unchanged.
	keptMax = sched.Duration(time.Hour)
	// restMin is how long the id of a forgotten model stays unused. Frontends have been told, and a session that
	// reads nothing is cut within seconds, so after this time no message with the old meaning is on its way.
	restMin = sched.Duration(time.Minute)
)

func modelKey(m *model.Info) string { return m.Name + "\x00" + m.Version }

// countNewModels returns how many models of a hello are new.
func (g *registry) countNewModels(h *wire.BackendHello) (n int) {
	for i := range h.Models {
		if _, known := g.byName[modelKey(&h.Models[i].Info)]; !known {
			n++
		}
	}
	for i := range h.Failed {
		if _, known := g.byName[modelKey(&h.Failed[i])]; !known {
			n++
		}
	}
	return n
}

// roomForModels returns the number of free ids for new models.
func (g *registry) roomForModels() int {
	now := g.e.clock.Now()
	rested := 0
	for rested < len(g.vacant) && g.mayReuseID(g.vacant[rested], now) {
		rested++
	}
	return ModelsMax - len(g.models) + rested
}

// mayReuseID reports whether a forgotten model's id may be reused.
func (g *registry) mayReuseID(id uint32, now sched.Time) bool {
	return now.Sub(g.models[id].since) >= restMin
}

// model returns the id of a model, a new id if its name and version are new.
func (g *registry) model(m *model.Info) uint32 {
	key := modelKey(m)
	if id, ok := g.byName[key]; ok {
		// A backend that brings a model back may have changed it. While others serve it, their description holds.
		if e := g.models[id]; !e.served() {
			e.describeModel(m)
			e.info.Ready = false
		}

		return id
	}
	id := g.unusedID()
	info := *m
	info.ID, info.Ready = id, false
	g.models[id] = &entry{info: info}
	g.byName[key] = id
	return id
}

// describeModel takes a backend's description of the model, except for the fields that the scheduler decides.
func (m *entry) describeModel(i *model.Info) {
	described := *i
	described.ID, described.Ready, described.SLO, described.BatchMax = m.info.ID, m.info.Ready, m.info.SLO, m.info.BatchMax
	m.info = described
}

// unusedID returns an id that names no model and that no message in flight can name.
func (g *registry) unusedID() uint32 {
	// vacant is ordered by the time of forgetting: if the first id has not rested, none has.
	if len(g.vacant) == 0 || !g.mayReuseID(g.vacant[0], g.e.clock.Now()) {
		g.models = append(g.models, nil)
		return uint32(len(g.models) - 1)
	}

	id := g.vacant[0]
	g.vacant = g.vacant[1:]

	// The counters belong to the former model.
	p := g.e.partition(sched.ModelID(id))
	p.mu.Lock()
	if int(id) < len(p.models) {
		p.models[id] = modelCount{}
	}
	p.forgetVariants(id)
	p.mu.Unlock()
	return id
}

// forgetModels drops models that no backend has had for keptMax, so that neither years of upgrades nor a backend that
// invents names can fill the catalogue.
func (g *registry) forgetModels() {
	now := g.e.clock.Now()
	var gone []model.Info
	for _, m := range g.models {
		id := m.info.ID
		if m.info.Name == "" || m.served() || now.Sub(m.since) < keptMax || g.isKnown(id) || m.class != nil && g.isRefused(m.class.of) {
			continue
		}

		// A family leaves with the last of its classes. Its first class is unserved when all are.
		g.withdrawModel(id)
		if m.class != nil {
			f := m.class.of
			if f.classes = slices.DeleteFunc(f.classes, func(x uint32) bool { return x == id }); len(f.classes) == 0 {
				delete(g.families, f.name)
			}
		} else {
			delete(g.byName, modelKey(&m.info))
		}

		// The id rests for a while, since messages on their way may still name it.
		*m = entry{info: model.Info{ID: id}, since: now}
		g.vacant = append(g.vacant, id)
		gone = append(gone, m.info)
	}
	g.publishCatalogue(gone)
}

// isKnown reports whether some backend has a model, served or not.
func (g *registry) isKnown(id uint32) bool {
	return slices.ContainsFunc(g.backends, func(b *Backend) bool { return slices.Contains(b.ids, id) || slices.Contains(b.failed, id) })
}

// withdrawModel removes a model from its partition. No requests of it are left: the queued ones ended when it lost its
// last home, and its batches when their backends left.
func (g *registry) withdrawModel(id uint32) {
	p := g.e.partition(sched.ModelID(id))
	t := g.e.beginTurn(&g.spare)
	p.enter(t)
	p.s.RemoveModel(t.now, sched.ModelID(id))
	p.collectOutputs(g.e, t)
	p.mu.Unlock()
	g.e.finishTurn(t)
}

// publishCatalogue updates the catalogue and tells the frontends of the changes.
func (g *registry) publishCatalogue(changed []model.Info) {
	if len(changed) == 0 {
		return
	}

	// Readers take the catalogue without a lock, so it is replaced and never changed.
	all := make([]model.Info, 0, len(g.models))
	for _, m := range g.models {
		if m.info.Name != "" && !m.hidden() {
			all = append(all, m.info)
		}
	}

	g.e.models.Store(&all)

	// Store the list before telling frontends: one that asks at once must see the changes.
	for _, f := range g.fronts {
		if f != nil {
			f.port.Models(changed)
		}
	}
}
