package sessions

import (
	"slices"
	"time"
)

// rule is how Rim, or one of its ablations, places a session.
type rule struct {
	qualities string // "all", "high" or "low"
	choose    string // "best-fit", "round-robin", "memory" or "utilization"
	cross     bool   // a session may use several workers (R5)
	split     bool   // the frames of a session that is too fast for any worker go to two (R7)
	force     bool   // refuse nobody: place a session even if it fits nowhere
	temporal  float64
}

// crossMax is the serialization time above which a module stays with its predecessor (R5).
const crossMax = 100 * time.Millisecond

// rim places sessions by their shares of workers (R3 to R9).
type rim struct {
	w      *Workload
	rule   rule
	left   []float64 // by worker: unassigned share
	memory []int     // by worker: MB
	placed []*placement
	events int
	turn   int
}

// newRim returns the placement of no session, with all workers free.
func newRim(w *Workload, r rule) *rim {
	p := &rim{w: w, rule: r, left: make([]float64, w.Workers), memory: make([]int, w.Workers)}
	for i := range p.left {
		p.left[i] = 1
	}
	return p
}

// demand returns the share of a worker that a module takes: f/F of the module alone.
func (p *rim) demand(s Stream, module, quality, worker int) float64 {
	fanOut := p.w.Apps[s.App].Modules[module].FanOut
	return s.FPS * float64(fanOut) * p.exec(s.App, module, quality, worker).Seconds()
}

// exec returns a request's time on an otherwise idle worker. Without sharing in space it is longer.
func (p *rim) exec(app, module, quality, worker int) time.Duration {
	took := p.w.Apps[app].exec(module, quality)
	if p.w.Times != nil {
		took = p.w.Times(app, module, quality, worker)
	}
	return time.Duration(float64(took) * p.rule.temporal)
}

// qualities returns the qualities that a session may have, best first.
func (p *rim) qualities(s Stream) []int {
	n := len(p.w.Apps[s.App].Qualities)
	switch p.rule.qualities {
	case "high":
		return []int{0}
	case "low":
		return []int{n - 1}
	}
	all := make([]int, n)
	for q := range all {
		all[q] = q
	}
	return all
}

// admitStream places a stream at the best quality that fits, and demotes others if none does; false: it is refused.
func (p *rim) admitStream(stream int, now time.Duration) bool {
	p.events++

	// The best quality first; a rule with one quality has one try.
	qualities := p.qualities(p.w.Streams[stream])
	for _, q := range qualities {
		if p.placeStream(stream, q, now) {
			return true
		}
	}

	if p.rule.force {
		return p.forcePlace(stream, qualities[len(qualities)-1], now)
	}

	// Other sessions can be demoted only if several qualities are allowed.
	if p.rule.qualities != "all" {
		return false
	}
	return p.demoteFor(stream, qualities[len(qualities)-1], now)
}

// demoteFor demotes the sessions whose last demotion is the longest ago until the new one fits at its lowest quality
// (R8 of §4.3). If it never fits, all get their qualities back.
func (p *rim) demoteFor(stream, quality int, now time.Duration) bool {
	// By the last demotion, oldest first, the loss goes round all sessions.
	order := slices.Clone(p.placed)
	slices.SortStableFunc(order, func(a, b *placement) int { return a.demoted - b.demoted })

	// Demote one session after the other, and remember how each was.
	var before []placement
	var changed []*placement
	for _, x := range order {
		lowest := len(p.w.Apps[p.w.Streams[x.stream].App].Qualities) - 1
		if x.quality == lowest {
			continue
		}
		before, changed = append(before, *x), append(changed, x)

		// Return the share and take it again around each change of quality.
		p.returnShares(x, 1)
		x.quality++
		x.demoted = p.events
		p.returnShares(x, -1)

		// Only a demotion that helped enters the history of its session.
		if p.placeStream(stream, quality, now) {
			for _, x := range changed {
				x.since = append(x.since, segment{now, x.quality, x.worker})
			}
			return true
		}
	}

	// It did not help: restore the former qualities.
	for i, x := range changed {
		p.returnShares(x, 1)
		*x = before[i]
		p.returnShares(x, -1)
	}
	return false
}

// leave removes a session, and promotes demoted sessions that fit, beginning with the last demotion that is the
// longest ago.
func (p *rim) leave(stream int, now time.Duration) {
	p.events++
	p.placed = slices.DeleteFunc(p.placed, func(x *placement) bool {
		if x.stream == stream {
			p.returnShares(x, 1)
		}
		return x.stream == stream
	})

	// A rule with one quality demotes no session.
	if p.rule.qualities != "all" {
		return
	}

	order := slices.Clone(p.placed)
	slices.SortStableFunc(order, func(a, b *placement) int { return a.demoted - b.demoted })
	for _, x := range order {
		if x.quality == 0 {
			continue
		}

		// A session that cannot be raised on its workers keeps its quality; it is not moved.
		p.returnShares(x, 1)
		x.quality--
		if !p.sharesLeft(x) {
			x.quality++
		} else {
			x.since = append(x.since, segment{now, x.quality, x.worker})
		}
		p.returnShares(x, -1)
	}
}

// returnShares returns a placement's shares, or takes them (−1).
func (p *rim) returnShares(x *placement, sign float64) {
	s := p.w.Streams[x.stream]
	for m, worker := range x.worker {
		p.left[worker] += sign * x.part.share() * p.demand(s, m, x.quality, worker)
		p.memory[worker] -= int(sign) * p.w.Apps[s.App].Modules[m].MemoryMB
	}
}

// sharesLeft reports whether a placement's shares are available.
func (p *rim) sharesLeft(x *placement) bool {
	// Several modules may be on one worker: add up before comparing.
	need := make([]float64, len(p.left))
	for m, worker := range x.worker {
		need[worker] += x.part.share() * p.demand(p.w.Streams[x.stream], m, x.quality, worker)
	}
	for i := range need {
		if need[i] > p.left[i]+1e-9 {
			return false
		}
	}
	return true
}
