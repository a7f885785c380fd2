package engine

import (
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
)

// explainVariants reports for every variant in every home whether it is intended there, and why not; and the next
// request's variant and cost.
func (g *registry) explainVariants(m *entry, ways []sched.Way, budget time.Duration) (all []Offered, next *NextCost) {
	s := &m.class.service
	for k, sub := range s.Homes {
		// The hull belongs to one home. It separates a variant that no price favours there from one that the present
		// price excludes.
		hull := hullOf(s, ways, sub)
		for i, v := range m.class.members {
			o := Offered{Model: v.info.Name, Version: v.info.Version, Accuracy: v.info.Accuracy, Kind: g.clusters[sub].label}
			w := wayOf(ways, sub, i)
			switch {
			// The first reason that holds is reported: without a profile nothing else is known of the variant there.
			case s.Variants[i].Profiles[k] == nil:
				o.LeftOut = "not resident"
			case w == nil:
				o.LeftOut = fmt.Sprintf("below the floor of %v", s.Floor)
			default:
				// Costs are in seconds, the explanation in milliseconds.
				o.Batch, o.GPUTime = w.Batch, w.Cost*1e3
				o.LeftOut = whyLeftOut(w, budget, hull[w.Variant])
				o.Intended = o.LeftOut == ""
			}

			all = append(all, o)
			if w != nil && w.Main && w.Intended && w.Staffed {
				next = &NextCost{o.Model, o.Version, o.Kind, o.GPUTime, w.Price * w.Cost}
			}
		}
	}
	return all, next
}

// wayOf finds a variant in a home; nil: it may not answer there.
func wayOf(ways []sched.Way, sub uint32, variant int) *sched.Way {
	for i := range ways {
		if ways[i].SubCluster == sub && int(ways[i].Variant) == variant {
			return &ways[i]
		}
	}
	return nil
}

// hullOf returns the variants, among those fast enough, that some price would prefer in a home.
func hullOf(s *sched.Service, ways []sched.Way, sub uint32) map[uint16]bool {
	var b plan.Bidder
	var variants []uint16
	for _, w := range ways {
		if w.SubCluster == sub && w.InTime {
			b.Offers = append(b.Offers, plan.Offer{Accuracy: s.Variants[w.Variant].Accuracy, Cost: w.Cost})
			variants = append(variants, w.Variant)
		}
	}

	// Hull counts offers by place, callers count by variant.
	hull := map[uint16]bool{}
	for _, i := range b.Hull(0, nil) {
		hull[variants[i]] = true
	}
	return hull
}

// whyLeftOut returns why a resident variant that keeps the floor is not intended; empty: it is.
func whyLeftOut(w *sched.Way, budget time.Duration, onHull bool) string {
	switch {
	case !w.Staffed:
		return "no GPU is there"
	case !w.InTime:
		return fmt.Sprintf("too slow: requests have %v", budget.Round(time.Millisecond/10))
	case !w.Intended && !onHull:
		return "dominated: others together are as accurate for less GPU time"
	case !w.Intended:
		return fmt.Sprintf("price: at %.4g another is worth more", w.Price)
	case !w.InUse:
		return fmt.Sprintf("price: at %.4g another kind is worth more", w.Price)
	}
	return ""
}

// notLoaded lists the models of a family that some backend has on disk and none has loaded.
func (g *registry) notLoaded(family string) (all []Offered) {
	add := func(m *model.Info) {
		// A model that some backend serves is listed as a variant.
		id, known := g.byName[modelKey(m)]
		if m.Family != family || known && g.models[id].served() {
			return
		}
		o := Offered{Model: m.Name, Version: m.Version, Accuracy: m.Accuracy, LeftOut: "not resident"}

		// Only a model that failed has a reason.
		if m.Reason != "" {
			o.LeftOut += ": " + m.Reason
		}

		// Several backends may have the model on disk: list it once.
		if !slices.ContainsFunc(all, func(x Offered) bool { return x.Model == o.Model && x.Version == o.Version }) {
			all = append(all, o)
		}
	}

	// For each backend, list the models that it could load, then those that failed.
	for _, b := range g.backends {
		for i := range b.hello.Models {
			add(&b.hello.Models[i].Info)
		}
		for i := range b.hello.Failed {
			add(&b.hello.Failed[i])
		}
	}
	return all
}
