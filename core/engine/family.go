package engine

import (
	"errors"
	"fmt"
	"slices"

	"downbeat.dev/core/model"
	"downbeat.dev/core/plan"
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

	// A floor may name a family that nobody has, because of a typing error: such a family is not served, for a reason.
	for name := range g.e.o.Floors {
		if g.families[name] == nil && members[name] == nil && len(g.models) > 0 {
			names = append(names, name)
		}
	}

	// Map order is random, and virtual time needs the same order in each run.
	slices.Sort(names)

	for _, name := range names {
		f, all := g.families[name], members[name]
		all, err := g.answeringVariants(name, all)
		if f == nil {
			f = &family{name: name}
			g.families[name] = f
		}

		why := ""
		if err != nil {
			why, all = err.Error(), nil
		}
		if why == "" && len(members[name]) == 0 && len(f.classes) == 0 {
			why = "no backend has a variant of it"
		}
		if floor := g.e.o.Floors[name]; why == "" && len(all) > 0 && !plan.KeepsFloor(all[0].info.Accuracy, floor) {
			why, all = fmt.Sprintf("%s%v: the best variant has %v", model.BelowFloor, floor, all[0].info.Accuracy), nil
		}

		// Logged once, not at every change of the cluster.
		if why != f.why && why != "" {
			g.e.log.Error("family not served", "family", name, "err", why)
		}
		f.why = why

		// A family that has variants and may not be served is announced with the reason: its clients would be told
		// otherwise that they mistyped its name.
		if why != "" && len(members[name]) > 0 && len(f.classes) == 0 && !g.isModel(name) && g.roomForModels() > 0 {
			g.addClass(f, 0)
		}
		changed = g.settleFamily(f, all, changed)
	}
	return changed
}

// answeringVariants returns the models that may answer for a family, the most accurate first, or the reason why it
// cannot be served.
func (g *registry) answeringVariants(name string, all []*entry) ([]*entry, error) {
	if g.isModel(name) {
		return nil, fmt.Errorf("family %q: a model has that name; give one of them another", name)
	}

	// Without an accuracy a model cannot be compared with others. The log says so once for each.
	var known []*entry
	for _, m := range all {
		switch {
		case plan.IsVariant(&m.info):
			known = append(known, m)
		case !m.unrated:
			m.unrated = true
			g.e.log.Warn("model is no variant of its family: it states no accuracy", "model", m.info.Name, "version", m.info.Version, "family", name)
		}
	}
	if len(known) == 0 {
		return nil, nil
	}

	// Any variant may answer a request, so all take and return the same tensors.
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

// isModel reports whether a model that is no family has a name.
func (g *registry) isModel(name string) bool {
	return slices.ContainsFunc(g.models, func(m *entry) bool { return m.class == nil && m.info.Name == name })
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

		// Whichever variant answers reads the same tensor, so that all must make it of a picture in the same way.
		for _, v := range m.class.members {
			info.Inputs = model.AgreeOnPictures(info.Inputs, v.info.Inputs)
		}
		info.Accuracy, info.SLO, info.BatchMax, info.Floors, info.Variants = first.Accuracy, m.slo, m.batchMax(), announced, nil
		for _, v := range m.class.members {
			if plan.KeepsFloor(v.info.Accuracy, m.class.service.Floor) {
				info.Variants = append(info.Variants, v.info.ID)
			}
		}
	}
	info.Reason = f.why
	if sameFamily(&m.info, &info) || len(info.Variants) == 0 && info.Reason == "" {
		return changed
	}
	m.info = info
	return append(changed, info)
}

// wasServed reports whether some variant of the family ever answered.
func (g *registry) wasServed(f *family) bool {
	return len(f.classes) > 0 && len(g.models[f.classes[0]].class.service.Variants) > 0
}

// isRefused reports whether the family has variants and may not be served.
func (g *registry) isRefused(f *family) bool {
	return f.why != "" && slices.ContainsFunc(g.models, func(m *entry) bool { return m.class == nil && m.info.Family == f.name && m.served() })
}

// sameFamily reports whether two announcements of a family agree in the fields that change.
func sameFamily(a, b *model.Info) bool {
	return a.Ready == b.Ready && a.SLO == b.SLO && a.BatchMax == b.BatchMax && a.Accuracy == b.Accuracy && a.Reason == b.Reason &&
		slices.Equal(a.Floors, b.Floors) && slices.Equal(a.Variants, b.Variants) && model.SameTensors(a.Inputs, b.Inputs) && model.SameTensors(a.Outputs, b.Outputs) && model.SamePictures(a.Inputs, b.Inputs)
}

// floorsOf returns the floors of a family's classes, ascending.
func (g *registry) floorsOf(f *family, members []*entry) []float64 {
	least := g.e.o.Floors[f.name]
	var accuracies, whole []float64
	for _, m := range members {
		accuracies = append(accuracies, m.info.Accuracy)
		if m.info.ExitOf == "" {
			whole = append(whole, m.info.Accuracy)
		}
	}

	all := plan.FloorsOf(accuracies, least, len(members))
	if len(all) <= model.FloorsMax {
		return all
	}

	// A request whose floor is between two classes cannot use what is between it and the higher one. Exits lie close
	// together, so whole networks have the classes, and the lowest variant, unless too few of them are whole.
	if floors := plan.FloorsOf(append(whole, all[0]), least, model.FloorsMax); len(floors) == model.FloorsMax {
		return floors
	}
	return plan.FloorsOf(accuracies, least, model.FloorsMax)
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
