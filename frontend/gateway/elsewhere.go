package gateway

import (
	"errors"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
)

// elsewhere tracks a model's requests from other frontends, where the scheduler runs in this process. Their number is
// the scheduler's count minus this gateway's.
type elsewhere struct {
	begun    bool
	served   beyond
	outcomes [model.ReasonCount]beyond
}

// beyond tracks two counters: one counts all requests, the other this gateway's share of them.
type beyond struct {
	all, own uint64
	ahead    int64 // at most 0: requests that only the own counter has counted so far
}

// othersSince returns the increase of the other frontends' share.
func (b *beyond) othersSince(all, own uint64) int {
	more, ours := int64(all-b.all), int64(own-b.own)
	if all < b.all {
		more = int64(all) // the scheduler forgot the model and counts from 0 again
	}
	b.all, b.own = all, own

	// The scheduler may not yet have counted requests that ended here since the last look. Older differences do not
	// count: the scheduler never learns of some requests that end here.
	n := more - ours + b.ahead
	b.ahead = max(min(n, 0), -ours)
	return int(max(n, 0))
}

// elsewhereEvery is the shortest interval between counts of other frontends' requests. It is much longer than the
// time until every counter has a request's end.
const elsewhereEvery = 250 * time.Millisecond

// countElsewhere updates the models' counts of requests from other frontends. It is called about once a second, and
// more often while the page is open.
func (g *Gateway) countElsewhere(now time.Time) {
	s := g.process.Scheduler()
	if s == nil {
		return
	}

	g.looking.Lock()
	defer g.looking.Unlock()

	// Frequent page loads do not count more often.
	since := now.Sub(g.looked)
	if since < elsewhereEvery {
		return
	}
	g.looked = now

	// Read the scheduler's counters first, so that a request that ends in between is in the gateway's count before it
	// is in the total.
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

		// Only the frontend knows whether an output was late.
		x := &mm.elsewhere
		mm.addOthers(now, since, x.served.othersSince(stats[i].Served, own.successes), "")
		for why, n := range stats[i].Outcomes {
			mm.addOthers(now, since, x.outcomes[why].othersSince(n, own.outcomes[why]), model.Reason(why).String())
		}
		x.begun = true
	}
}

// addOthers counts n requests from other frontends since the last look. Requests before the first look are ignored.
func (mm *modelMetrics) addOthers(now time.Time, since time.Duration, n int, reason string) {
	if n == 0 || !mm.elsewhere.begun {
		return
	}

	// Most models have no such requests, and a series takes some 100 KiB.
	if mm.others.Load() == nil {
		mm.others.Store(new(series))
	}

	// The interval may reach into the previous second, which gets its share: looks are not aligned to whole seconds.
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

// countOutcome counts a failure that the scheduler may also have counted.
func (s *sums) countOutcome(err error, rows int) {
	if o := new(frontend.OutcomeError); errors.As(err, &o) && o.Reason < model.ReasonCount {
		s.outcomes[o.Reason] += uint64(rows)
	}
}
