package engine

import (
	"slices"
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
)

// marks are the times at which copies of the counters were taken, so that explanations can report the last minute. A
// counter that is added later counts as 0 at earlier marks.
type marks struct {
	at   [marksKept]sched.Time // by slot
	made int                   // the next one goes into slot made % marksKept
}

const (
	markEvery = sched.Duration(5 * time.Second)
	marksKept = 13 // a minute, and the mark before it

	// The spans that explanations report; the marks may make them a little longer.
	lately     = sched.Duration(time.Second)
	lastMinute = sched.Duration(time.Minute)
)

// due reports whether it is time for a mark, and in which slot.
func (k *marks) due(now sched.Time) (slot int, due bool) {
	if k.made > 0 && now.Sub(k.at[(k.made-1)%marksKept]) < markEvery {
		return 0, false
	}
	slot = k.made % marksKept
	k.at[slot] = now
	k.made++
	return slot, true
}

// markBefore returns the latest mark that is at least a span old. If there is none, as in the first minute, it
// returns the slot of the next mark, which was never written, and time 0.
func (k *marks) markBefore(now sched.Time, span sched.Duration) (slot int, at sched.Time) {
	for n := k.made - 1; n > k.made-marksKept && n >= 0; n-- {
		if slot = n % marksKept; now.Sub(k.at[slot]) >= span {
			return slot, k.at[slot]
		}
	}
	slot = k.made % marksKept
	return slot, k.at[slot]
}

// recordPaid adds up the prices paid until now, and makes a mark when one is due.
func (x *pricing) recordPaid(now sched.Time) {
	// The homes and prices are those of the latest renewal, which held until now.
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

	// Prices paid and answers given are marked together, so that both can be given for the same span.
	for k := range x.subs {
		x.subs[k].paidAt[slot] = x.subs[k].paid
	}
	for i := range x.bidders {
		id := x.bidders[i].id
		p := x.e.partition(sched.ModelID(id))
		p.mu.Lock()
		if a := p.answersOf(id); a != nil {
			a.mark(slot, &p.models[id])
		}
		p.mu.UnlockBehind()
	}
}
