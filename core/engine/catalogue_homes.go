package engine

import (
	"slices"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
)

// home is a sub-cluster that serves a model, with the profile in force there.
type home struct {
	sub   uint32
	table []time.Duration
	prof  *profile.Profile // made of table
}

// settleHomes gives every model its homes, updates the partitions and tells the frontends.
func (g *registry) settleHomes() {
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
		if m.slo != slo || !slices.EqualFunc(m.homes, homes, home.isSame) {
			m.homes, m.slo = homes, slo
			g.applyService(m)
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
	g.publishCatalogue(g.settleFamilies(changed))
	g.listBidders()
}

// isSame reports whether two homes are the same sub-cluster with the same profile.
func (h home) isSame(x home) bool { return h.sub == x.sub && slices.Equal(h.table, x.table) }

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

// homesOf returns the sub-clusters that serve a model: those that have it loaded, limited to the HomesMax with most
// GPUs.
func (g *registry) homesOf(m *entry) (homes []home) {
	for _, c := range g.clusters[1:] {
		if len(c.gpus) == 0 {
			continue
		}
		if table := c.kindProfile(m.info.ID, nil); table != nil {
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
	n, _ := u.numberOnBackend(sched.ModelID(m.info.ID))
	slo := g.slo(&u.b.hello.Models[n].Info, homes[0].table)

	return int64(plan.ServableSLO(time.Duration(slo), homes[0].table[0]))
}
