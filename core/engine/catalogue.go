package engine

import (
	"slices"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/plan"
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

// home is a sub-cluster that serves a model, with the profile in force there.
type home struct {
	sub   uint32
	table []time.Duration
	prof  *profile.Profile // made of table
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

// fresh returns how many models of a hello are new.
func (g *registry) fresh(h *wire.BackendHello) (n int) {
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
	for rested < len(g.vacant) && g.rested(g.vacant[rested], now) {
		rested++
	}
	return ModelsMax - len(g.models) + rested
}

// rested reports whether a forgotten model's id may be reused.
func (g *registry) rested(id uint32, now sched.Time) bool {
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
	id := g.vacancy()
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

// vacancy returns an id that names no model and that no message in flight can name.
func (g *registry) vacancy() uint32 {
	// vacant is ordered by the time of forgetting: if the first id has not rested, none has.
	if len(g.vacant) == 0 || !g.rested(g.vacant[0], g.e.clock.Now()) {
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
	delete(p.families, id)
	p.mu.Unlock()
	return id
}

// forget drops models that no backend has had for keptMax, so that neither years of upgrades nor a backend that
// invents names can fill the catalogue.
func (g *registry) forget() {
	now := g.e.clock.Now()
	var gone []model.Info
	for _, m := range g.models {
		id := m.info.ID
		if m.info.Name == "" || m.served() || now.Sub(m.since) < keptMax || g.had(id) {
			continue
		}

		// A family leaves with the last of its classes. Its first class is unserved when all are.
		g.withdraw(id)
		if m.class != nil {
			f := m.class.of
			if f.classes = slices.DeleteFunc(f.classes, func(x uint32) bool { return x == id }); len(f.classes) == 0 {
				delete(g.families, f.name)
			}
		} else {
			delete(g.byName, modelKey(&m.info))
		}
		*m = entry{info: model.Info{ID: id}, since: now}
		g.vacant = append(g.vacant, id)
		gone = append(gone, m.info)
	}
	g.publish(gone)
}

// had reports whether some backend has a model, served or not.
func (g *registry) had(id uint32) bool {
	return slices.ContainsFunc(g.backends, func(b *Backend) bool { return slices.Contains(b.ids, id) || slices.Contains(b.failed, id) })
}

// withdraw removes a model from its partition. No requests of it are left: the queued ones ended when it lost its
// last home, and its batches when their backends left.
func (g *registry) withdraw(id uint32) {
	p := g.e.partition(sched.ModelID(id))
	t := g.e.begin(&g.spare)
	p.enter(t)
	p.s.RemoveModel(t.now, sched.ModelID(id))
	p.collect(g.e, t)
	p.mu.Unlock()
	g.e.finish(t)
}

// settle gives every model its homes, updates the partitions and tells the frontends.
func (g *registry) settle() {
	var changed []model.Info
	for _, m := range g.models {
		if m.info.Name == "" || m.class != nil {
			continue
		}

		before := m.info
		homes := g.homesOf(m)

		// A model that lost all homes keeps its SLO for frontends that ask meanwhile.
		slo := m.slo
		if len(homes) > 0 {
			slo = g.sloOf(m, homes)
		}

		// Only changed services are updated, since an update takes the partition's lock.
		if m.slo != slo || !slices.EqualFunc(m.homes, homes, home.same) {
			m.homes, m.slo = homes, slo
			g.apply(m)
		}

		m.info.Ready, m.info.SLO, m.info.BatchMax = m.served(), m.slo, m.batchMax()
		if m.info.Ready {
			m.info.Reason = ""
		}

		// Frontends are told only of changes that they can see; the number of homes is not one.
		if m.news || before.Ready != m.info.Ready || before.SLO != m.info.SLO || before.BatchMax != m.info.BatchMax {
			m.news = false
			changed = append(changed, m.info)
		}
	}

	// The order matters: families depend on their members, and bidders on both.
	g.publish(g.settleFamilies(changed))
	g.listBidders()
}

// same reports whether two homes are the same sub-cluster with the same profile.
func (h home) same(x home) bool { return h.sub == x.sub && slices.Equal(h.table, x.table) }

// batchMax is the largest batch that any home allows; without homes it keeps its value.
func (m *entry) batchMax() (most uint32) {
	if !m.served() {
		return m.info.BatchMax
	}
	for i := range m.homes {
		most = max(most, uint32(len(m.homes[i].table)))
	}
	return most
}

// publish updates the catalogue and tells the frontends of the changes.
func (g *registry) publish(changed []model.Info) {
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

// homesOf returns the sub-clusters that serve a model: those that have it loaded, limited to the HomesMax with most
// GPUs.
func (g *registry) homesOf(m *entry) (homes []home) {
	for _, c := range g.clusters[1:] {
		if len(c.gpus) == 0 {
			continue
		}
		if table := c.table(m.info.ID, nil); table != nil {
			homes = append(homes, home{sub: c.number, table: table})
		}
	}

	return g.mostGPUs(homes)
}

// mostGPUs returns the homes with most GPUs if there are more than a service may have, by number.
func (g *registry) mostGPUs(homes []home) []home {
	if len(homes) > sched.HomesMax {
		gpus := make([]int, len(homes))
		for i, h := range homes {
			gpus[i] = len(g.clusters[h.sub].gpus)
		}
		all := homes
		homes = nil
		for _, i := range plan.LargestHomes(gpus, sched.HomesMax) {
			homes = append(homes, all[i])
		}
	}
	slices.SortFunc(homes, func(a, b home) int { return int(a.sub) - int(b.sub) })
	return homes
}

// sloOf returns the SLO of a served model, as stated by a backend in its first home.
func (g *registry) sloOf(m *entry, homes []home) int64 {
	// All GPUs of a sub-cluster have the model loaded, so any will do.
	u := g.clusters[homes[0].sub].gpus[0]
	n, _ := u.runs(sched.ModelID(m.info.ID))
	slo := g.slo(&u.b.hello.Models[n].Info, homes[0].table)

	return int64(plan.ServableSLO(time.Duration(slo), homes[0].table[0]))
}

// apply puts a model's homes, profiles and SLO in force in its partition.
func (g *registry) apply(m *entry) {
	s, err := g.service(m)
	if err == nil {
		err = g.setService(m, s, nil)
	}
	if err != nil {
		g.e.log.Error("model not served", "model", m.info.Name, "err", err)
	}
}

// setService puts a service in force in its partition. members are the models of its variants if it is a family.
func (g *registry) setService(m *entry, s sched.Service, members []*entry) error {
	var variants []uint32
	for _, v := range members {
		variants = append(variants, v.info.ID)
	}

	// Only services with a choice take part in pricing.
	m.chooses = m.served() && waysOf(&s) > 1
	part := g.e.partition(sched.ModelID(m.info.ID))
	t := g.e.begin(&g.spare)
	part.enter(t)
	err := part.setService(g.e, t, m.info.ID, s, variants)
	part.mu.Unlock()
	g.e.finish(t)
	if len(s.Homes) > 1 {
		g.tellOutlooks(s.Homes)
	}
	return err
}

// waysOf counts the ways to answer for a service: pairs of a home and a variant that keeps its floor.
func waysOf(s *sched.Service) (n int) {
	for i := range s.Variants {
		if v := &s.Variants[i]; plan.KeepsFloor(v.Accuracy, s.Floor) {
			for _, p := range v.Profiles {
				if p != nil {
					n++
				}
			}
		}
	}
	return n
}

// hidden reports whether frontends see an entry only as a floor of another entry.
func (m *entry) hidden() bool { return m.class != nil && m.class.of.classes[0] != m.info.ID }

// service describes a model to its partition. An unserved model is in sub-cluster 0, which never has GPUs, with its
// latest profile.
func (g *registry) service(m *entry) (s sched.Service, err error) {
	s = sched.Service{SLO: sched.Duration(m.slo), QueueMax: g.queueMax(m)}
	v := sched.Variant{}
	for i := range m.homes {
		h := &m.homes[i]
		if h.prof, err = g.profile(h.table); err != nil {
			return s, err
		}
		m.last = h.prof
		s.Homes, v.Profiles = append(s.Homes, h.sub), append(v.Profiles, h.prof)
	}

	if len(m.homes) == 0 {
		s.Homes, v.Profiles = []uint32{0}, []*profile.Profile{m.last}
	}
	s.Variants = []sched.Variant{v}
	return s, nil
}

// queueMax returns the most requests of a model that may be queued.
func (g *registry) queueMax(m *entry) int {
	return plan.QueueLimit(int(m.info.QueueMax), g.e.o.QueueMax)
}

// profile returns the Profile of a table. Homes with equal tables share one Profile, so decisions read it from memory
// once.
func (g *registry) profile(table []time.Duration) (*profile.Profile, error) {
	for _, x := range g.models {
		// A model without homes keeps its latest profile; when it returns, the profile is found here.
		if x.last != nil && x.last.Has(table) {
			return x.last, nil
		}
		for k := range x.homes {
			if p := x.homes[k].prof; p != nil && p.Has(table) {
				return p, nil
			}
		}
	}
	return profile.New(table)
}

// slo returns the SLO in force for a model.
func (g *registry) slo(m *model.Info, table []time.Duration) int64 {
	return int64(plan.SLOInForce(g.e.o.SLO[m.Name], time.Duration(m.SLO), table[0]))
}
