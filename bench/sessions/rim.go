package sessions

import (
	"math"
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

// placement is the place of a session, or of one of its two parts: a quality, and a worker for each module.
type placement struct {
	stream  int
	part    part
	quality int
	worker  []int
	demoted int // when, in order of events; 0: never
	since   []segment
}

// part is the frames of a session that belong to a placement: an interval of shares, so that the parts are spread
// evenly.
type part struct{ from, to float64 }

var allFrames = part{0, 1}

// share returns the share of a session's frames.
func (f part) share() float64 { return f.to - f.from }

// hasFrame reports whether the n-th frame of a session belongs to the part. By the golden ratio, every stretch of
// frames is divided in the same proportion.
func (f part) hasFrame(n int) bool {
	_, at := math.Modf(float64(n) * (math.Phi - 1))
	return f.from <= at && at < f.to
}

// segment is a placement's state from a time on.
type segment struct {
	from    time.Duration
	quality int
	worker  []int
}

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
	order := slices.Clone(p.placed)

	// Sort by the last demotion, oldest first, so that the loss rotates (Rim §4.3).
	slices.SortStableFunc(order, func(a, b *placement) int { return a.demoted - b.demoted })

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

// placeStream places a stream on one worker, its modules on several, or its frames on two.
func (p *rim) placeStream(stream, quality int, now time.Duration) bool {
	s := p.w.Streams[stream]
	whole := func(worker int) float64 { return p.wholeDemand(s, quality, worker) }

	if best := p.chooseWorker(whole, nil); best >= 0 {
		return p.keepPlacement(p.placeOn(best, stream, quality, allFrames), now)
	}
	return p.rule.cross && p.crossWorkers(stream, quality, now) || p.rule.split && p.splitStream(stream, quality, now)
}

// crossWorkers places a stream's modules on workers one by one, modules with a high hand-over cost together (R5).
func (p *rim) crossWorkers(stream, quality int, now time.Duration) bool {
	s := p.w.Streams[stream]
	modules := len(p.w.Apps[s.App].Modules)
	x := p.placeOn(0, stream, quality, allFrames)
	need := make([]float64, len(p.left))
	for m := 0; m < modules; {
		from, end := m, m+1
		for end < modules && p.w.Apps[s.App].Modules[end-1].Serialize > crossMax {
			end++
		}
		part := func(worker int) (sum float64) {
			for k := from; k < end; k++ {
				sum += p.demand(s, k, quality, worker)
			}
			return sum
		}

		best := p.chooseWorker(part, need)
		if best < 0 {
			return false
		}
		need[best] += part(best)
		for ; m < end; m++ {
			x.worker[m] = best
		}
	}
	return p.keepPlacement(x, now)
}

// wholeDemand returns the share of a worker that all modules of a stream take.
func (p *rim) wholeDemand(s Stream, quality, worker int) (sum float64) {
	for m := range p.w.Apps[s.App].Modules {
		sum += p.demand(s, m, quality, worker)
	}
	return sum
}

// placeOn returns a placement of all modules on one worker.
func (p *rim) placeOn(worker, stream, quality int, of part) *placement {
	modules := len(p.w.Apps[p.w.Streams[stream].App].Modules)
	return &placement{stream: stream, part: of, quality: quality, worker: slices.Repeat([]int{worker}, modules)}
}

// splitStream divides the frames of a stream that is too fast for every worker among the two that it fits best, with
// the least space left over (R7). It fills one of them, so that the remaining space is contiguous.
func (p *rim) splitStream(stream, quality int, now time.Duration) bool {
	s := p.w.Streams[stream]
	if p.w.Apps[s.App].Stateful {
		return false
	}

	// The frames that each worker could take.
	room := make([]float64, len(p.left))
	for i := range room {
		whole := p.wholeDemand(s, quality, i)
		if whole <= 1 {
			return false // an empty worker would be enough
		}
		room[i] = max(0, p.left[i]/whole)
	}

	first, second := -1, -1
	for i := range room {
		for k := i + 1; k < len(room); k++ {
			if sum := room[i] + room[k]; sum >= 1 && (first < 0 || sum < room[first]+room[second]) {
				first, second = i, k
			}
		}
	}

	if first < 0 {
		return false
	}
	if room[first] > room[second] {
		first, second = second, first
	}

	// Both or none: a late frame is equally bad on either.
	a, b := p.placeOn(first, stream, quality, part{0, room[first]}), p.placeOn(second, stream, quality, part{room[first], 1})
	latency := p.w.Apps[s.App].Latency
	return p.latency(a) <= latency && p.latency(b) <= latency && p.keepPlacement(a, now) && p.keepPlacement(b, now)
}

// keepPlacement keeps a placement whose frames can be in time.
func (p *rim) keepPlacement(x *placement, now time.Duration) bool {
	// Reject a placement that misses the latency even on idle workers.
	if p.latency(x) > p.w.Apps[p.w.Streams[x.stream].App].Latency {
		return false
	}
	x.since = []segment{{now, x.quality, x.worker}}
	p.returnShares(x, -1)
	p.placed = append(p.placed, x)
	return true
}

// forcePlace places a stream on the worker that the rule chooses, for best fit the one with the most space, whether
// it fits or not.
func (p *rim) forcePlace(stream, quality int, now time.Duration) bool {
	best := p.chooseWorker(func(int) float64 { return 0 }, nil)

	// Best fit would choose the fullest worker; the emptiest is overloaded least.
	for i := range p.left {
		if p.rule.choose == "best-fit" && p.left[i] > p.left[best] {
			best = i
		}
	}
	x := p.placeOn(best, stream, quality, allFrames)
	x.since = []segment{{now, x.quality, x.worker}}
	p.returnShares(x, -1)
	p.placed = append(p.placed, x)
	return true
}

// chooseWorker returns the worker for a share, which may differ by worker, by the rule. taken is the part already
// given to the stream. −1: none.
func (p *rim) chooseWorker(need func(worker int) float64, taken []float64) int {
	left := func(i int) float64 {
		if taken == nil {
			return p.left[i]
		}
		return p.left[i] - taken[i]
	}

	// Every rule except best fit ignores the remaining space, so it overloads workers while others idle.

	best := -1
	switch p.rule.choose {
	case "round-robin":
		p.turn++
		return p.turn % len(p.left)
	case "memory":
		for i := range p.left {
			if best < 0 || p.memory[i] < p.memory[best] {
				best = i
			}
		}
	case "utilization":
		for i := range p.left {
			if best < 0 || p.left[i] > p.left[best] {
				best = i
			}
		}
	default:
		for i := range p.left {
			if n := need(i); (left(i)+1e-9 >= n || n == 0) && (best < 0 || left(i)-n < left(best)-need(best)) {
				best = i
			}
		}
	}
	return best
}

// latency returns the time of a frame on idle workers.
func (p *rim) latency(x *placement) time.Duration {
	app := p.w.Streams[x.stream].App
	a := &p.w.Apps[app]

	// Modules are ordered after their predecessors.
	until := make([]time.Duration, len(a.Modules))
	for m := range a.Modules {
		for _, before := range a.Modules[m].After {
			until[m] = max(until[m], until[before]+p.pass(a, x.worker, int(before), m))
		}
		until[m] += a.Modules[m].CPU + time.Duration(a.Modules[m].FanOut)*p.exec(app, m, x.quality, x.worker[m])
	}
	return slices.Max(until)
}

// pass returns the time to pass a result from one module to the next.
func (p *rim) pass(a *Application, worker []int, from, to int) time.Duration {
	if worker[from] == worker[to] {
		return 0
	}
	return a.Modules[from].Serialize
}
