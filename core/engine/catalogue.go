package engine

import (
	"slices"
	"time"

	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// The registry's models: ids, homes, profiles.

// entry is what a model id stands for: a model that some backend has or had, or none.
type entry struct {
	info  wire.ModelInfo   // without a name: the model was forgotten
	since sched.Time       // when the latest backend that had it left, or when it was forgotten
	home  uint32           // sub-cluster; 0: nobody serves it
	table []int64          // the profile in force
	slo   int64            // the SLO in force
	prof  *profile.Profile // of table
}

const (
	// keptMax is how long a model stays known that no backend has: its requests are refused as
	// unavailable until then, and a backend that comes back finds it as it was.
	keptMax = sched.Duration(time.Hour)
	// restMin is how long the id of a forgotten model stands for none. The frontends were told, and
	// a session that takes nothing in is cut within seconds, so that no message that means the old
	// model is under way any more.
	restMin = sched.Duration(time.Minute)
)

func modelKey(m *wire.ModelInfo) string { return m.Name + "\x00" + m.Version }

// fresh is how many models of a hello are new.
func (g *registry) fresh(h *wire.BackendHello) (n int) {
	for i := range h.Models {
		if _, known := g.byName[modelKey(&h.Models[i].Info)]; !known {
			n++
		}
	}
	return n
}

// room is how many new models there are ids for.
func (g *registry) room() int {
	now := g.e.clock.Now()
	rested := 0
	for rested < len(g.vacant) && g.rested(g.vacant[rested], now) {
		rested++
	}
	return ModelsMax - len(g.models) + rested
}

// rested says whether the id of a forgotten model may name another one.
func (g *registry) rested(id uint32, now sched.Time) bool {
	return now.Sub(g.models[id].since) >= restMin
}

// model returns the id of a model, a new one when the name and version are new.
func (g *registry) model(m *wire.ModelInfo) uint32 {
	key := modelKey(m)
	if id, ok := g.byName[key]; ok {
		if e := g.models[id]; e.home == 0 {
			e.info.Inputs, e.info.Outputs, e.info.Platform = m.Inputs, m.Outputs, m.Platform
		}
		return id
	}
	id := g.vacancy()
	info := *m
	info.ID, info.Ready = id, false
	g.models[id] = &entry{info: info}
	g.byName[key] = id
	return id
}

// vacancy returns an id that names no model and that no message can name.
func (g *registry) vacancy() uint32 {
	if len(g.vacant) == 0 || !g.rested(g.vacant[0], g.e.clock.Now()) {
		g.models = append(g.models, nil)
		return uint32(len(g.models) - 1)
	}
	id := g.vacant[0]
	g.vacant = g.vacant[1:]
	p := g.e.partition(sched.ModelID(id))
	p.mu.Lock()
	if int(id) < len(p.models) {
		p.models[id] = modelCount{}
	}
	p.mu.Unlock()
	return id
}

// forget lets go of the models that no backend has had for long, so that neither years of upgrades
// nor a backend that makes names up fill the catalogue for good.
func (g *registry) forget() {
	now := g.e.clock.Now()
	var gone []wire.ModelInfo
	for _, m := range g.models {
		id := m.info.ID
		if m.info.Name == "" || m.home != 0 || now.Sub(m.since) < keptMax || g.had(id) {
			continue
		}
		g.withdraw(id)
		delete(g.byName, modelKey(&m.info))
		*m = entry{info: wire.ModelInfo{ID: id}, since: now}
		g.vacant = append(g.vacant, id)
		gone = append(gone, m.info)
	}
	g.publish(gone)
}

// had says whether some backend has a model, served or not.
func (g *registry) had(id uint32) bool {
	return slices.ContainsFunc(g.clusters, func(c *cluster) bool {
		return slices.ContainsFunc(c.backends, func(b *Backend) bool { _, ok := b.runs(sched.ModelID(id)); return ok })
	})
}

// withdraw takes a model from its partition. No request of it is left: what was queued ended when it
// lost its home, and its batches when their backends left.
func (g *registry) withdraw(id uint32) {
	p := g.e.partition(sched.ModelID(id))
	t := g.e.begin(&g.spare)
	p.enter(t)
	p.s.RemoveModel(t.now, sched.ModelID(id))
	p.collect(g.e, t)
	p.mu.Unlock()
	g.e.finish(t)
}

// settle gives every model its home, brings the partitions up to date and tells the frontends.
func (g *registry) settle() {
	var changed []wire.ModelInfo
	for _, m := range g.models {
		if m.info.Name == "" {
			continue
		}
		home := g.homeOf(m)
		before := m.info
		if home != nil {
			table, slo := g.offer(m, home)
			if m.home != home.number || m.slo != slo || !slices.Equal(m.table, table) {
				m.home, m.table, m.slo = home.number, table, slo
				g.apply(m)
			}
		} else if m.home != 0 {
			m.home = 0
			g.apply(m)
		}
		m.info.Ready, m.info.SLO, m.info.BatchMax = m.home != 0, m.slo, uint32(len(m.table))
		if before.Ready != m.info.Ready || before.SLO != m.info.SLO || before.BatchMax != m.info.BatchMax {
			changed = append(changed, m.info)
		}
	}
	g.publish(changed)
}

// publish renews the catalogue and tells the frontends what changed.
func (g *registry) publish(changed []wire.ModelInfo) {
	if len(changed) == 0 {
		return
	}
	all := make([]wire.ModelInfo, 0, len(g.models))
	for _, m := range g.models {
		if m.info.Name != "" {
			all = append(all, m.info)
		}
	}
	g.e.models.Store(&all)
	for _, f := range g.fronts {
		if f != nil {
			f.port.Models(changed)
		}
	}
}

// homeOf returns where a model is to be served: where it is while that works, else where most
// GPUs have it.
func (g *registry) homeOf(m *entry) *cluster {
	var best *cluster
	for _, c := range g.clusters[1:] {
		if !c.serves(m.info.ID) {
			continue
		}
		if c.number == m.home {
			return c
		}
		if best == nil || c.gpus > best.gpus {
			best = c
		}
	}
	return best
}

// serves says whether every backend of the sub-cluster, and at least one, has the model.
func (c *cluster) serves(id uint32) bool {
	for _, b := range c.backends {
		if _, ok := b.runs(sched.ModelID(id)); !ok {
			return false
		}
	}
	return len(c.backends) > 0
}

// offer merges the profiles of a sub-cluster's backends: at every batch size the slowest, up to
// the smallest largest batch, since any of its GPUs may get any batch.
func (g *registry) offer(m *entry, c *cluster) (table []int64, slo int64) {
	for _, b := range c.backends {
		i, _ := b.runs(sched.ModelID(m.info.ID))
		bm := &b.hello.Models[i]
		if table == nil {
			table, slo = slices.Clone(bm.Profile), g.slo(&bm.Info, bm.Profile)
			continue
		}
		table = table[:min(len(table), len(bm.Profile))]
		for k := range table {
			table[k] = max(table[k], bm.Profile[k])
		}
	}
	return table, max(slo, table[0])
}

// apply puts a model's home, profile and SLO in force in its partition.
func (g *registry) apply(m *entry) {
	err := g.profile(m)
	if err == nil {
		part := g.e.partition(sched.ModelID(m.info.ID))
		t := g.e.begin(&g.spare)
		part.enter(t)
		err = part.reset(g.e, t, m.info.ID, sched.Model{Profile: m.prof, SLO: sched.Duration(m.slo), SubCluster: m.home, QueueMax: g.e.o.QueueMax})
		part.mu.Unlock()
		g.e.finish(t)
	}
	if err != nil {
		g.e.log.Error("model not served", "model", m.info.Name, "err", err)
	}
}

// profile makes a model's Profile, or takes that of another model with the same table: what decisions
// read is then in the memory once.
func (g *registry) profile(m *entry) (err error) {
	for _, x := range g.models {
		if x != m && x.prof != nil && slices.Equal(x.table, m.table) {
			m.prof = x.prof
			return nil
		}
	}
	m.prof, err = newProfile(m.table)
	return err
}

func newProfile(ns []int64) (*profile.Profile, error) {
	table := make([]time.Duration, len(ns))
	for i, n := range ns {
		table[i] = time.Duration(n)
	}
	return profile.New(table)
}

// slo returns the SLO in force for a model: the options', the backend's, or four times ℓ(1) and
// at least 50 ms.
func (g *registry) slo(m *wire.ModelInfo, table []int64) int64 {
	if d := g.e.o.SLO[m.Name]; d > 0 {
		return int64(d)
	}
	if m.SLO != 0 {
		return m.SLO
	}
	return max(int64(50*time.Millisecond), 4*table[0])
}
