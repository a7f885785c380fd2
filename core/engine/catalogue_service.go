package engine

import (
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
)

// applyService puts a model's homes, profiles and SLO in force in its partition.
func (g *registry) applyService(m *entry) {
	s, err := g.describeService(m)
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
	t := g.e.beginTurn(&g.spare)
	part.enter(t)
	err := part.setService(g.e, t, m.info.ID, s, variants)
	part.mu.UnlockBehind()
	g.e.finishTurn(t)
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

// describeService describes a model to its partition. An unserved model is in sub-cluster 0, which never has GPUs, with
// its latest profile.
func (g *registry) describeService(m *entry) (s sched.Service, err error) {
	s = sched.Service{SLO: sched.Duration(m.slo), QueueMax: g.queueMax(m)}

	// A plain model is a service with one variant, which has a profile in every home.
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

// slo returns the SLO in force for a model.
func (g *registry) slo(m *model.Info, table []time.Duration) int64 {
	return int64(plan.SLOInForce(g.e.o.SLO[m.Name], time.Duration(m.SLO), table[0]))
}
