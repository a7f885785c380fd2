package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
)

// family is a group of models of which any may answer; some are more accurate, some faster. Requests name one of its
// classes: a service with a queue of its own and a floor for the accuracy of its answers. The first class takes every
// variant that the options allow and is announced under the family's name, for requests without a floor; the
// announcement's floors name the others. Requests already sent or queued rely on the floor that their class was
// announced with, so the floor of a class other than the first never falls (decision 0259).
type family struct {
	name    string
	classes []uint32 // ids of the services
	why     string   // why it is not served, as logged; empty: it may be served
}

// class is the additional state of a family's entry.
type class struct {
	of      *family
	members []*entry      // by variant, the most accurate first
	service sched.Service // in force
	floor   float64       // its answers keep it for good; of the first class 0
}

// settleFamilies gives families their variants and homes after models have theirs, and appends the changes that
// frontends must learn.
func (g *registry) settleFamilies(changed []model.Info) []model.Info {
	members := map[string][]*entry{}
	for _, m := range g.models {
		if name := m.info.Family; name != "" && m.class == nil && m.served() {
			members[name] = append(members[name], m)
		}
	}

	var names []string
	for name := range members {
		if g.families[name] == nil {
			names = append(names, name)
		}
	}
	for name := range g.families {
		names = append(names, name)
	}

	// Map order is random, and virtual time needs the same order in each run.
	slices.Sort(names)

	for _, name := range names {
		f, all := g.families[name], members[name]
		all, err := g.variants(name, all)
		if f == nil {
			f = &family{name: name}
			g.families[name] = f
		}

		why := ""
		if err != nil {
			why, all = err.Error(), nil
		}
		if floor := g.e.o.Floors[name]; why == "" && len(all) > 0 && !plan.KeepsFloor(all[0].info.Accuracy, floor) {
			why, all = fmt.Sprintf("accuracy floor %v: the best variant has %v", floor, all[0].info.Accuracy), nil
		}

		// Logged once, not at every change of the cluster.
		if why != f.why && why != "" {
			g.e.log.Error("family not served", "family", name, "err", why)
		}
		f.why = why
		changed = g.settleFamily(f, all, changed)
	}
	return changed
}

// variants returns the models that may answer for a family, the most accurate first, or the reason why it cannot be
// served.
func (g *registry) variants(name string, all []*entry) ([]*entry, error) {
	if slices.ContainsFunc(g.models, func(m *entry) bool { return m.class == nil && m.info.Name == name }) {
		return nil, fmt.Errorf("family %q: a model has that name; give one of them another", name)
	}

	var known []*entry
	for _, m := range all {
		switch {
		case plan.IsVariant(&m.info):
			known = append(known, m)
		case !m.unrated:
			m.unrated = true
			g.e.log.Warn("model is no variant of its family: it says no accuracy", "model", m.info.Name, "version", m.info.Version, "family", name)
		}
	}
	if len(known) == 0 {
		return nil, nil
	}

	plan.OrderVariants(known, func(m *entry) *model.Info { return &m.info })
	first := &known[0].info
	for _, m := range known[1:] {
		if !model.SameTensors(first.Inputs, m.info.Inputs) || !model.SameTensors(first.Outputs, m.info.Outputs) {
			return nil, fmt.Errorf("family %q: %s version %s and %s version %s have different inputs or outputs", name,
				first.Name, first.Version, m.info.Name, m.info.Version)
		}
	}
	return known[:min(len(known), sched.VariantsMax)], nil
}

// settleFamily puts the variants of a family in force.
func (g *registry) settleFamily(f *family, members []*entry, changed []model.Info) []model.Info {
	// The first class has the lowest floor at any time, and is made with the first variant.
	floors := g.floorsOf(f, members)
	if len(f.classes) == 0 && len(floors) > 0 {
		g.addClass(f, 0)
	}

	if len(f.classes) > 0 {
		g.settleFirst(g.models[f.classes[0]], members, floors)
	}

	// A class whose floor is no longer wanted stays, unserved: frontends may still send its id.
	wanted := g.classesFor(f, floors)
	for _, id := range f.classes[min(1, len(f.classes)):] {
		if !slices.Contains(wanted, id) {
			g.settleClass(g.models[id], nil, 0)
		}
	}

	var announced []model.Floor
	for k, id := range wanted {
		m := g.models[id]
		g.settleClass(m, members, floors[k])
		if m.served() {
			announced = append(announced, model.Floor{Accuracy: floors[k], ID: id})
		}
	}
	if len(f.classes) == 0 {
		return changed
	}

	// The announcement is that of the first class, with the others as its floors.
	m := g.models[f.classes[0]]
	info := m.info
	if info.Ready = m.served(); info.Ready {
		first := &m.class.members[0].info
		info.Inputs, info.Outputs, info.Platform, info.Unbatched, info.InputMax = first.Inputs, first.Outputs, first.Platform, first.Unbatched, first.InputMax
		info.SLOBinds, info.Priority, info.QueueMax = first.SLOBinds, first.Priority, first.QueueMax
		info.Accuracy, info.SLO, info.BatchMax, info.Floors, info.Variants = first.Accuracy, m.slo, m.batchMax(), announced, nil
		for _, v := range m.class.members {
			if plan.KeepsFloor(v.info.Accuracy, m.class.service.Floor) {
				info.Variants = append(info.Variants, v.info.ID)
			}
		}
	}
	info.Reason = f.why
	if sameFamily(&m.info, &info) || len(info.Variants) == 0 {
		return changed
	}
	m.info = info
	return append(changed, info)
}

// settleFirst puts the class in force that answers requests without a floor.
func (g *registry) settleFirst(m *entry, members []*entry, floors []float64) {
	if len(floors) == 0 {
		g.settleClass(m, nil, 0)
		return
	}

	g.settleClass(m, members, floors[0])
}

// classesFor returns the classes for these floors, which are ascending, making new ones where needed. If ids run out,
// the highest floors get no class.
func (g *registry) classesFor(f *family, floors []float64) (ids []uint32) {
	var told []float64
	for _, id := range f.classes[min(1, len(f.classes)):] {
		told = append(told, g.models[id].class.floor)
	}

	for k, at := range plan.PlaceFloors(floors, told) {
		var id uint32
		switch {
		case at >= 0:
			id = f.classes[1+at]
		case g.roomForModels() == 0:
			return ids
		default:
			id = g.addClass(f, floors[k])
		}
		g.models[id].class.floor = floors[k]
		ids = append(ids, id)
	}
	return ids
}

// addClass makes a class of a family.
func (g *registry) addClass(f *family, floor float64) uint32 {
	id := g.vacancy()
	g.models[id] = &entry{info: model.Info{ID: id, Name: f.name, Family: f.name}, since: g.e.clock.Now(), class: &class{of: f, floor: floor}}
	f.classes = append(f.classes, id)
	return id
}

// sameFamily reports whether two announcements of a family agree in the fields that change.
func sameFamily(a, b *model.Info) bool {
	return a.Ready == b.Ready && a.SLO == b.SLO && a.BatchMax == b.BatchMax && a.Accuracy == b.Accuracy && a.Reason == b.Reason &&
		slices.Equal(a.Floors, b.Floors) && slices.Equal(a.Variants, b.Variants) && model.SameTensors(a.Inputs, b.Inputs) && model.SameTensors(a.Outputs, b.Outputs)
}

// floorsOf returns the floors of a family's classes, ascending.
func (g *registry) floorsOf(f *family, members []*entry) []float64 {
	var accuracies []float64
	for _, m := range members {
		accuracies = append(accuracies, m.info.Accuracy)
	}
	return plan.FloorsOf(accuracies, g.e.o.Floors[f.name], model.FloorsMax)
}

// settleClass puts the variants, homes and floor of one class in force.
func (g *registry) settleClass(m *entry, members []*entry, floor float64) {
	s, homes := g.classService(m, members, floor)
	if slices.EqualFunc(s.Variants, m.class.service.Variants, sameVariant) && slices.Equal(s.Homes, m.class.service.Homes) &&
		s.Floor == m.class.service.Floor && s.SLO == m.class.service.SLO && s.QueueMax == m.class.service.QueueMax {
		m.homes = homes
		return
	}

	if len(s.Variants) == 0 {
		return // it was never served
	}

	// The members stay while nobody serves the class: each variant's batches still need a model.
	if len(homes) == 0 {
		m.since = g.e.clock.Now()
	} else {
		m.class.members = members
	}
	m.homes, m.slo, m.class.service = homes, int64(s.SLO), s
	if err := g.setService(m, s, m.class.members); err != nil {
		g.e.log.Error("family not served", "family", m.info.Name, "floor", floor, "err", err)
	}
}

func sameVariant(a, b sched.Variant) bool {
	return a.Accuracy == b.Accuracy && slices.Equal(a.Profiles, b.Profiles)
}

// classService describes a class to its partition. Without homes it keeps its state in sub-cluster 0, which never has
// GPUs.
func (g *registry) classService(m *entry, members []*entry, floor float64) (s sched.Service, homes []home) {
	if len(members) == 0 {
		s = m.class.service
		s.Homes, s.Variants = []uint32{0}, slices.Clone(s.Variants)
		for i := range s.Variants {
			v := &s.Variants[i]
			any := slices.IndexFunc(v.Profiles, func(p *profile.Profile) bool { return p != nil })

			// Any profile will do without GPUs, but queued requests need one for planning.
			v.Profiles = []*profile.Profile{nil}
			if any >= 0 {
				v.Profiles[0] = m.class.service.Variants[i].Profiles[any]
			}
		}
		return s, nil
	}

	s = sched.Service{Floor: floor, SLO: sched.Duration(members[0].slo), QueueMax: g.queueMax(members[0])}
	homes = g.homesOfAll(members, floor)
	for i := range homes {
		s.Homes = append(s.Homes, homes[i].sub)
	}
	for i, v := range members {
		x := sched.Variant{Accuracy: v.info.Accuracy, Profiles: make([]*profile.Profile, len(homes))}
		for k := range homes {
			// During an update one sub-cluster may have two versions loaded: only the newer one answers.
			if h := v.homeIn(homes[k].sub); h != nil && !g.outdated(members, i, homes[k].sub) {
				x.Profiles[k] = h.prof
				if plan.KeepsFloor(v.info.Accuracy, floor) {
					s.SLO = sched.Duration(plan.ServableSLO(time.Duration(s.SLO), h.prof.Exec(1)))
				}
			}
		}
		s.Variants = append(s.Variants, x)
	}
	return s, homes
}

// homesOfAll returns the sub-clusters in which some member reaches the floor, each with its largest table.
func (g *registry) homesOfAll(members []*entry, floor float64) (homes []home) {
	for _, m := range members {
		if !plan.KeepsFloor(m.info.Accuracy, floor) {
			continue
		}
		for _, h := range m.homes {
			k := slices.IndexFunc(homes, func(x home) bool { return x.sub == h.sub })
			switch {
			case k < 0:
				homes = append(homes, home{sub: h.sub, table: h.table})
			case len(h.table) > len(homes[k].table):
				homes[k].table = h.table
			}
		}
	}
	return g.mostGPUs(homes)
}

// outdated reports whether a sub-cluster has a newer version of member i.
func (g *registry) outdated(members []*entry, i int, sub uint32) bool {
	old := &members[i].info
	return slices.ContainsFunc(members, func(m *entry) bool { return plan.Outdates(&m.info, old) && m.homeIn(sub) != nil })
}

// homeIn returns the home of a model in a sub-cluster; nil if it has none.
func (m *entry) homeIn(sub uint32) *home {
	for i := range m.homes {
		if m.homes[i].sub == sub {
			return &m.homes[i]
		}
	}
	return nil
}

// checkFloors refuses floors that are not accuracies.
func checkFloors(floors map[string]float64) error {
	var bad []error
	for name, floor := range floors {
		if !(floor >= 0 && floor <= 1) {
			bad = append(bad, fmt.Errorf("engine: accuracy floor of family %q: %v, want 0 to 1", name, floor))
		}
	}
	return errors.Join(bad...)
}
