package engine

import (
	"slices"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
)

// class is the additional state of a family's entry.
type class struct {
	of      *family
	members []*entry      // by variant, the most accurate first
	service sched.Service // in force
	floor   float64       // its answers keep it for good; of the first class 0
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

	// A present class keeps its id, and its floor never falls: requests that rely on it may be under way.
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
	id := g.unusedID()
	g.models[id] = &entry{info: model.Info{ID: id, Name: f.name, Family: f.name}, since: g.e.clock.Now(), class: &class{of: f, floor: floor}}
	f.classes = append(f.classes, id)
	return id
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

	// No SLO is shorter than the longest single request of a member that may answer: it could not be kept.
	for i, v := range members {
		x := sched.Variant{Accuracy: v.info.Accuracy, Profiles: make([]*profile.Profile, len(homes))}
		for k := range homes {
			// During an update one sub-cluster may have two versions loaded: only the newer one answers.
			if h := v.homeIn(homes[k].sub); h != nil && !g.hasNewerVersion(members, i, homes[k].sub) {
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

		// The table with the most batch sizes stands for the home.
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

// hasNewerVersion reports whether a sub-cluster has a newer version of member i.
func (g *registry) hasNewerVersion(members []*entry, i int, sub uint32) bool {
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
