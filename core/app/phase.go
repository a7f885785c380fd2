package app

import "time"

// ChoosePhase is when in its period the frames of a new session should come, or are thought to. Frames of a session that can be triggered come
// together with those of sessions like it, as many as make the batch that the split counts with: a batch without
// waiting. Groups are spread over the period.
func ChoosePhase(open []Promise, p *Promise, triggered bool) time.Duration {
	members := map[time.Duration]int{}
	var groups []time.Duration // in the order in which they were begun
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

// firstBatch is the batch of the first step that asks a model.
func (p *Promise) firstBatch() int {
	for _, b := range p.Batch {
		if b > 0 {
			return b
		}
	}
	return 1
}

// spread is the n-th of numbers from 0 to 1 that lie evenly however many there are (van der Corput).
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
