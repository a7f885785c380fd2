package swarm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// Families in a Cluster: models i·Variants to (i+1)·Variants−1 are family i. Sub-clusters are kinds of GPUs, and each
// has some of a family's variants. A request names a family, perhaps with an accuracy floor, or one variant.

// DrawFamilies returns Draw's options with families on kinds of GPUs, drawn from a separate stream.
func DrawFamilies(seed uint64) Options {
	o, r := drawAlike(seed), rand.New(rand.NewPCG(seed, 5))
	o.Variants = 2 + r.IntN(4)
	o.Models = o.Variants * (1 + r.IntN(6))
	o.Clusters = 1 + r.IntN(3)
	o.Backends = max(o.Backends, o.Clusters)
	o.Kinds = 4 * r.Float64() * r.Float64()
	o.Unlike = min(o.Unlike, oneKind)
	o.Floors = r.Float64()
	o.drawLearners()
	o.drawHooks()
	return o
}

// ask is the target of a request: one model, or any variant of its family with at least this accuracy.
type ask struct {
	family bool
	floor  float64
}

// familyOf returns the number of a model's family.
func (c *Cluster) familyOf(k int) int { return k / c.o.Variants }

func familyName(f int) string { return fmt.Sprint("f", f) }

// drawFamilies groups the models into families and draws the placement and the accuracy of each variant.
func (c *Cluster) drawFamilies(r *rand.Rand) {
	// The first kind has the drawn profiles: without other sub-clusters no GPU is slower.
	for i := range c.o.Clusters {
		c.kinds = append(c.kinds, 1+c.o.Kinds*r.Float64())
		if i == 0 {
			c.kinds[0] = 1
		}
	}

	slowest, longest := slices.Max(c.kinds), Duration(0)
	for k := range c.models {
		m := &c.models[k]
		if k%c.o.Variants == 0 {
			longest = 0
		}

		// Each variant is in at least one sub-cluster, and in each other one with probability 1/2.
		m.family = familyName(c.familyOf(k))
		m.accuracy = drawAccuracy(r)
		m.homes = make([]bool, c.o.Clusters)
		for i := range m.homes {
			m.homes[i] = i == k%c.o.Clusters || r.IntN(2) == 0
		}

		// The family has one SLO, which its slowest variant meets on the slowest kind.
		longest = max(longest, Duration(slowest*float64(m.slo)))
		for j := k - k%c.o.Variants; j <= k; j++ {
			c.models[j].slo = longest
		}
	}

	// Some families have a floor in the scheduler's configuration, which their best variant meets.
	c.floors = map[string]float64{}
	for f := range len(c.models) / c.o.Variants {
		if r.IntN(3) == 0 {
			c.floors[familyName(f)] = c.models[f*c.o.Variants+r.IntN(c.o.Variants)].accuracy
		}
	}
}

// drawAccuracy draws from ten values, so that some variants are equally accurate.
func drawAccuracy(r *rand.Rand) float64 { return 0.5 + 0.05*float64(r.IntN(10)) }

// kindOf returns the name of the GPUs of a sub-cluster.
func (c *Cluster) kindOf(cluster int) string {
	if len(c.kinds) == 0 {
		return "simulated"
	}

	return fmt.Sprint("k", cluster)
}

// scaleKind scales a profile to the GPUs of a sub-cluster.
func (c *Cluster) scaleKind(table []time.Duration, cluster int) {
	if len(c.kinds) == 0 {
		return
	}

	for j := range table {
		table[j] = time.Duration(float64(table[j]) * c.kinds[cluster])
	}
}

// drawAsk draws the target of a request: the family with or without a floor, or the model itself.
func (c *Cluster) drawAsk() (a ask) {
	if c.o.Variants < 2 || c.load.IntN(4) == 0 {
		return ask{}
	}

	// Accuracies are below 1, so some floors are too high for every variant.
	a.family = true
	if c.load.Float64() < c.o.Floors {
		a.floor = 0.5 + 0.55*c.load.Float64()
	}
	return a
}

// namedService returns the id that a call uses in a session, as frontend.Model documents it: the model, the family,
// or the lowest floor of the family that is high enough. ok is false if no floor is high enough or nothing has been
// announced.
func (s *frontSession) namedService(k int, a ask) (id uint32, ok bool) {
	if !a.family {
		return s.ids[k] - 1, s.ids[k] != 0
	}

	// A request without a floor names the family itself, else its lowest sufficient floor.
	f := &s.families[s.f.c.familyOf(k)]
	if a.floor == 0 {
		return f.ID, len(f.Variants) > 0
	}

	for _, x := range f.Floors {
		if a.floor <= x.Accuracy {
			return x.ID, true
		}
	}
	return 0, false
}

// hasAnnounced reports whether the target of a request has been announced, even if with too low an accuracy.
func (s *frontSession) hasAnnounced(k int, a ask) bool {
	if a.family {
		return len(s.families[s.f.c.familyOf(k)].Variants) > 0
	}
	return s.ids[k] != 0
}

// noteModel notes an announcement.
func (s *frontSession) noteModel(m *model.Info) {
	var k int
	if _, err := fmt.Sscanf(m.Name, "f%d", &k); err == nil && k < len(s.families) && m.IsFamily() && !s.f.old {
		s.families[k] = *m
	}

	// Keep a model's id plus one, since 0 means none.
	if _, err := fmt.Sscanf(m.Name, "m%d", &k); err == nil && k < len(s.ids) {
		s.ids[k], s.ready[k] = m.ID+1, m.Ready
	}
}

// checkBatchFloors reports a batch whose model a request in it did not ask for, or that is less accurate than the request
// asked for (V1).
func (k *checker) checkBatchFloors(o *order) {
	c, m := k.c, &o.s.b.hello.Models[o.x.Model].Info
	if c.o.Variants < 2 {
		return
	}

	for i := range o.x.Items {
		x := &o.x.Items[i]
		s := o.s.fronts[x.Frontend]
		call := &s.f.calls[x.ID-1]
		if call.deadline == 0 {
			continue // an invalid Submit may name any model
		}

		asked := &c.models[call.model]
		switch {
		case !call.asks.family && m.Name != asked.name, m.Family != asked.family:
			k.fail("V1: batch %d of %s holds request %d of frontend %d, which asked for %s (any of its family: %v)", o.x.Batch, m.Name, x.ID, x.Frontend, asked.name, call.asks.family)
		case call.asks.family:
			k.Reaches(o.x.Batch, m.Accuracy, uint64(x.Frontend), x.ID, max(call.asks.floor, c.floors[m.Family]))
			c.report.Families.countAnswer(call.asks, m.Accuracy < c.bestAccuracy(m.Family))
		}
	}
}

// bestAccuracy returns the accuracy of a family's best variant.
func (c *Cluster) bestAccuracy(family string) (most float64) {
	for i := range c.models {
		if c.models[i].family == family {
			most = max(most, c.models[i].accuracy)
		}
	}
	return most
}

// FamiliesReport counts the requests for families.
type FamiliesReport struct {
	Best, Lower int // requests in batches of the family's best variant, and in batches of others
	Floored     int // of these, requests with a floor
	TooHigh     int // requests whose floor exceeds every variant
}

func (r *FamiliesReport) countAnswer(a ask, lower bool) {
	if lower {
		r.Lower++
	} else {
		r.Best++
	}
	if a.floor > 0 {
		r.Floored++
	}
}

// endTooHigh ends a call locally if no variant reaches its floor, as the frontend does.
func (f *front) endTooHigh(id uint64) {
	f.c.report.Families.TooHigh++
	f.c.report.Told[model.FloorTooHigh]++
	f.endCall(id, model.FloorTooHigh, false)
}

// forgetFamilies turns a hello into one of the previous version, which has no families.
func forgetFamilies(h *wire.BackendHello) {
	for n := range h.Models {
		h.Models[n].Info.Family, h.Models[n].Info.Accuracy = "", 0
	}
}
