package engine

import (
	"slices"
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
)

// marks are the moments at which it was noted what had been counted until then, so that somebody who asks can be told
// of the last minute. What comes to be counted later had counted nothing at earlier marks: its notes are 0.
type marks struct {
	at   [marksKept]sched.Time // by slot
	made int                   // the next is made in slot made % marksKept
}

const (
	markEvery = sched.Duration(5 * time.Second)
	marksKept = 13 // a minute, and the one before

	// The spans that explanations speak of, or a little more.
	lately     = sched.Duration(time.Second)
	lastMinute = sched.Duration(time.Minute)
)

// due says whether it is time for a mark, and in which slot.
func (k *marks) due(now sched.Time) (slot int, due bool) {
	if k.made > 0 && now.Sub(k.at[(k.made-1)%marksKept]) < markEvery {
		return 0, false
	}
	slot = k.made % marksKept
	k.at[slot] = now
	k.made++
	return slot, true
}

// markBefore returns the latest mark that is at least a span old. Where there is none, as in the first minute, that is the
// slot of the next mark, which was never written, at time 0.
func (k *marks) markBefore(now sched.Time, span sched.Duration) (slot int, at sched.Time) {
	for n := k.made - 1; n > k.made-marksKept && n >= 0; n-- {
		if slot = n % marksKept; now.Sub(k.at[slot]) >= span {
			return slot, k.at[slot]
		}
	}
	slot = k.made % marksKept
	return slot, k.at[slot]
}

// noteWhatWas adds up what was paid until now, and makes a mark when it is time.
func (x *pricing) noteWhatWas(now sched.Time) {
	// The homes and their prices are still those of the latest renewal, and held until now.
	for k := range x.subs {
		s := &x.subs[k]
		if i := slices.IndexFunc(x.homes, func(h plan.PricedHome) bool { return h.SubCluster == s.number }); i >= 0 {
			s.paid += x.homes[i].Price * float64(now.Sub(max(x.at, s.since))) / 1e9
		}
	}

	slot, due := x.marks.due(now)
	if !due {
		return
	}
	for k := range x.subs {
		x.subs[k].paidAt[slot] = x.subs[k].paid
	}
	for i := range x.bidders {
		id := x.bidders[i].id
		p := x.e.partition(sched.ModelID(id))
		p.mu.Lock()
		if a := p.families[id]; a != nil {
			a.mark(slot, &p.models[id])
		}
		p.mu.Unlock()
	}
}
