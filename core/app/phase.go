package app

import "time"

// ChoosePhase returns the phase of a new session's frames within its period. If the session can be triggered, its
// frames come together with those of similar sessions, in groups of the batch size that the split assumes: such a
// batch needs no waiting. Groups are spread over the period.
func ChoosePhase(open []Promise, p *Promise, triggered bool) time.Duration {
	// The groups of the sessions like this one, by phase, and how large a group may be.
	members := map[time.Duration]int{}
	var groups []time.Duration // in the order of their creation
	together := 1
	for i := range open {
		o := &open[i]
		if o.Graph != p.Graph || o.Period() != p.Period() {
			continue
		}

		if members[o.Phase] == 0 {
			groups = append(groups, o.Phase)
		}
		members[o.Phase]++
		together = max(together, o.firstBatch())
	}

	if triggered {
		for _, phase := range groups {
			if members[phase] < together {
				return phase
			}
		}
	}
	return time.Duration(float64(p.Period()) * spread(len(groups)))
}

// firstBatch returns the batch size of the first step that asks a model.
func (p *Promise) firstBatch() int {
	for _, b := range p.Batch {
		if b > 0 {
			return b
		}
	}
	return 1
}

// spread returns the n-th number of the van der Corput sequence, whose numbers lie evenly between 0 and 1 for every
// n.
func spread(n int) float64 {
	at, share := 0.0, 0.5
	for ; n > 0; n /= 2 {
		if n%2 == 1 {
			at += share
		}
		share /= 2
	}
	return at
}
