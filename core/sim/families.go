package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// Families in a Cluster: models i·Variants to (i+1)·Variants−1 are family i, sub-clusters are kinds of GPUs, and each has
// some of a family's variants. Requests name a family, perhaps with a floor, or one of its variants.

// DrawFamilies returns Draw's options with families on kinds of GPUs, which are drawn from a stream of their own.
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
	return o
}

// ask is what a request wants: one model, or of its family an answer at least so accurate.
type ask struct {
	family bool
	floor  float64
}

// familyOf is the number of a model's family.
func (c *Cluster) familyOf(k int) int { return k / c.o.Variants }

func familyName(f int) string { return fmt.Sprint("f", f) }

// drawFamilies makes families of the models, and draws where each variant is and how accurate it is.
func (c *Cluster) drawFamilies(r *rand.Rand) {
	// The first kind is as models are drawn: without other sub-clusters nothing is slower.
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

		// Each variant is in one sub-cluster at least, and in each other one by a coin.
		m.family = familyName(c.familyOf(k))
		m.accuracy = drawAccuracy(r)
		m.homes = make([]bool, c.o.Clusters)
		for i := range m.homes {
			m.homes[i] = i == k%c.o.Clusters || r.IntN(2) == 0
		}

		// One SLO for the family, which its slowest variant keeps on the slowest kind.
		longest = max(longest, Duration(slowest*float64(m.slo)))
		for j := k - k%c.o.Variants; j <= k; j++ {
			c.models[j].slo = longest
		}
	}

	// Some families have a floor in the scheduler's configuration, which their best variant keeps.
	c.floors = map[string]float64{}
	for f := range len(c.models) / c.o.Variants {
		if r.IntN(3) == 0 {
			c.floors[familyName(f)] = c.models[f*c.o.Variants+r.IntN(c.o.Variants)].accuracy
		}
	}
}

// drawAccuracy draws from few accuracies, so that some variants are equals.
func drawAccuracy(r *rand.Rand) float64 { return 0.5 + 0.05*float64(r.IntN(10)) }

// kindOf is what the GPUs of a sub-cluster call themselves.
func (c *Cluster) kindOf(cluster int) string {
	if len(c.kinds) == 0 {
		return "simulated"
	}

	return fmt.Sprint("k", cluster)
}

// scaleKind makes a profile that of a sub-cluster's kind of GPU.
func (c *Cluster) scaleKind(table []time.Duration, cluster int) {
	if len(c.kinds) == 0 {
		return
	}

	for j := range table {
		table[j] = time.Duration(float64(table[j]) * c.kinds[cluster])
	}
}

// drawAsk draws what a request for a model's family, or for the model itself, wants.
func (c *Cluster) drawAsk() (a ask) {
	if c.o.Variants < 2 || c.load.IntN(4) == 0 {
		return ask{}
	}

	// The highest floors lie above every accuracy there is.
	a.family = true
	if c.load.Float64() < c.o.Floors {
		a.floor = 0.5 + 0.55*c.load.Float64() // some want more than there is
	}
	return a
}

// namedService returns what a call names in a session, as frontend.Model says: the model, the family, or the lowest of its
// floors that is high enough. Where none is, or nothing has been announced, it reports false.
func (s *session) namedService(k int, a ask) (id uint32, ok bool) {
	if !a.family {
		return s.ids[k] - 1, s.ids[k] != 0
	}

	f := &s.families[s.f.c.familyOf(k)]

	// Without a floor the family itself is named, else the lowest that will do.
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

// knows tells whether what a request wants has been announced, if with too low an accuracy.
func (s *session) knows(k int, a ask) bool {
	if a.family {
		return len(s.families[s.f.c.familyOf(k)].Variants) > 0
	}
	return s.ids[k] != 0
}

// noteModel notes an announcement.
func (s *session) noteModel(m *model.Info) {
	var k int
	if _, err := fmt.Sscanf(m.Name, "f%d", &k); err == nil && k < len(s.families) && m.IsFamily() && !s.f.old {
		s.families[k] = *m
	}

	// A model's id is kept plus one: 0 is none.
	if _, err := fmt.Sscanf(m.Name, "m%d", &k); err == nil && k < len(s.ids) {
		s.ids[k], s.ready[k] = m.ID+1, m.Ready
	}
}

// keepsFloors objects to a batch of a model that some request of it did not ask for, or that is less accurate than it
// asked for (V1).
func (k *checker) keepsFloors(o *order) {
	c, m := k.c, &o.s.b.hello.Models[o.x.Model].Info
	if c.o.Variants < 2 {
		return
	}

	for i := range o.x.Items {
		x := &o.x.Items[i]
		s := o.s.fronts[x.Frontend]
		call := &s.f.calls[x.ID-1]
		if call.deadline == 0 {
			continue // junk names what it likes
		}

		asked := &c.models[call.model]
		switch {
		case !call.asks.family && m.Name != asked.name, m.Family != asked.family:
			k.fail("V1: batch %d of %s holds request %d of frontend %d, which asked for %s (any of its family: %v)", o.x.Batch, m.Name, x.ID, x.Frontend, asked.name, call.asks.family)
		case call.asks.family:
			k.Reaches(o.x.Batch, m.Accuracy, uint64(x.Frontend), x.ID, max(call.asks.floor, c.floors[m.Family]))
			c.report.Families.countAnswer(call.asks, m.Accuracy < c.best(m.Family))
		}
	}
}

// best is the accuracy of a family's best variant.
func (c *Cluster) best(family string) (most float64) {
	for i := range c.models {
		if c.models[i].family == family {
			most = max(most, c.models[i].accuracy)
		}
	}
	return most
}

// FamiliesReport is what became of requests for families.
type FamiliesReport struct {
	Best, Lower int // requests in batches of the family's best variant, and of others
	Floored     int // of those, with a floor
	TooHigh     int // that no variant was accurate enough for
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

// endTooHigh ends a call locally whose floor nobody reaches, as the frontend does.
func (f *front) endTooHigh(id uint64) {
	f.c.report.Families.TooHigh++
	f.c.report.Told[model.FloorTooHigh]++
	f.endCall(id, model.FloorTooHigh, false)
}

// forgetFamilies makes a hello that of the version before, which knows no families.
func forgetFamilies(h *wire.BackendHello) {
	for n := range h.Models {
		h.Models[n].Info.Family, h.Models[n].Info.Accuracy = "", 0
	}
}
