package gateway

import (
	"errors"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
)

// elsewhere follows a model's requests that come by other frontends, where the scheduler runs in this process: they are what the
// scheduler counts beyond what this gateway counts.
type elsewhere struct {
	begun    bool
	served   beyond
	outcomes [model.ReasonCount]beyond
}

// beyond follows two counters, of which one counts all and the other a part of it.
type beyond struct {
	all, own uint64
	ahead    int64 // at most 0: the own counter has had news first
}

// othersSince returns by how many the other part has grown.
func (b *beyond) othersSince(all, own uint64) int {
	more, ours := int64(all-b.all), int64(own-b.own)
	if all < b.all {
		more = int64(all) // the scheduler had forgotten the model, and counts anew
	}
	b.all, b.own = all, own

	// What was counted here since the last look need not have been counted there yet. Older differences are none: of some
	// requests that end here the scheduler never hears.
	n := more - ours + b.ahead
	b.ahead = max(min(n, 0), -ours)
	return int(max(n, 0))
}

// elsewhereEvery is how far counts of other frontends' requests are apart at least. It is much longer than a request's end takes to be
// known to all.
const elsewhereEvery = 250 * time.Millisecond

// countElsewhere brings the models' numbers of requests from other frontends up to date. It is called about once a second, and more
// often while the page is looked at.
func (g *Gateway) countElsewhere(now time.Time) {
	s := g.process.Scheduler()
	if s == nil {
		return
	}

	g.looking.Lock()
	defer g.looking.Unlock()

	// Whoever looks at the page again and again counts no more often.
	since := now.Sub(g.looked)
	if since < elsewhereEvery {
		return
	}
	g.looked = now

	// The scheduler's counters are read first, so that what ends in between is the gateway's own before it is everybody's.
	stats, at := s.Fresh().Models, map[modelKey]int{}
	for i := range stats {
		at[modelKey{stats[i].Name, stats[i].Version}] = i
	}

	for _, m := range g.listModels() {
		i, known := at[modelKey{m.Name, m.Version}]
		if !known || stats[i].ID != m.ID {
			continue
		}

		mm := g.metrics.metricsOf(m.Name, m.Version)
		mm.mu.Lock()
		own := mm.sums
		mm.mu.Unlock()

		// Whether an output was late is known to its frontend alone.
		x := &mm.elsewhere
		mm.addOthers(now, since, x.served.othersSince(stats[i].Served, own.successes), "")
		for why, n := range stats[i].Outcomes {
			mm.addOthers(now, since, x.outcomes[why].othersSince(n, own.outcomes[why]), model.Reason(why).String())
		}
		x.begun = true
	}
}

// addOthers counts n requests that other frontends have had since a while ago. What was before the first look is history.
func (mm *modelMetrics) addOthers(now time.Time, since time.Duration, n int, reason string) {
	if n == 0 || !mm.elsewhere.begun {
		return
	}

	// Most models have none, and a series takes some 100 KiB.
	if mm.others.Load() == nil {
		mm.others.Store(new(series))
	}

	// The while may reach into the second before, which gets its share: looks do not keep to whole seconds.
	whole := now.Truncate(time.Second)
	late := n
	if part := now.Sub(whole); part < since {
		late = int(int64(n) * int64(part) / int64(since))
	}
	if n > late {
		mm.others.Load().addEnds(whole.Add(-1), n-late, 0, reason)
	}
	if late > 0 {
		mm.others.Load().addEnds(now, late, 0, reason)
	}
}

// countOutcome counts a failure that the scheduler may have counted as well.
func (s *sums) countOutcome(err error, rows int) {
	if o := new(frontend.OutcomeError); errors.As(err, &o) && o.Reason < model.ReasonCount {
		s.outcomes[o.Reason] += uint64(rows)
	}
}
