package sessions

import (
	"math"
	"slices"
	"time"
)

// rule says how Rim, or one of its ablations, places a session.
type rule struct {
	qualities string // "all", "high" or "low"
	choose    string // "best-fit", "round-robin", "memory" or "utilization"
	cross     bool   // a session may be spread over workers (R5)
	split     bool   // frames of a session that is too fast for any worker go to two (R7)
	force     bool   // nobody is refused: a session that fits nowhere is placed all the same
	temporal  float64
}

// crossMax is the serialization above which a module stays with the one before it (R5).
const crossMax = 100 * time.Millisecond

// placement is the place of a session, or of the part of its frames that two share: a quality, and a worker for each module.
type placement struct {
	stream  int
	part    part
	quality int
	worker  []int
	demoted int // when, in order of events; 0: never
	since   []segment
}

// part is the frames that a placement has of its session: from a share of them to another, so that the parts of a session are spread evenly.
type part struct{ from, to float64 }

var allFrames = part{0, 1}

// share is the share of a session's frames.
func (f part) share() float64 { return f.to - f.from }

// hasFrame reports whether the n-th frame of a session is the part's. By the golden ratio any stretch of frames is divided like all of them.
func (f part) hasFrame(n int) bool {
	_, at := math.Modf(float64(n) * (math.Phi - 1))
	return f.from <= at && at < f.to
}

// segment is what holds from a time on.
type segment struct {
	from    time.Duration
	quality int
	worker  []int
}

// rim places sessions by their shares of workers (R3 to R9).
type rim struct {
	w      *Workload
	rule   rule
	left   []float64 // by worker: what is not given away
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

// demand is the share of a worker that a module takes: f/F of the module alone.
func (p *rim) demand(s Stream, module, quality, worker int) float64 {
	fanOut := p.w.Apps[s.App].Modules[module].FanOut
	return s.FPS * float64(fanOut) * p.exec(s.App, module, quality, worker).Seconds()
}

// exec is a request's time on a worker that runs nothing else. Without sharing in space it is longer.
func (p *rim) exec(app, module, quality, worker int) time.Duration {
	took := p.w.Apps[app].exec(module, quality)
	if p.w.Times != nil {
		took = p.w.Times(app, module, quality, worker)
	}
	return time.Duration(float64(took) * p.rule.temporal)
}

// qualities are those that a session may have, best first.
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

// admitStream places a stream at the best quality that fits, demoting others if none does; false: it is refused.
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

	// Only where several qualities are allowed can others be demoted for this session.
	if p.rule.qualities != "all" {
		return false
	}
	return p.demoteFor(stream, qualities[len(qualities)-1], now)
}

// demoteFor demotes the sessions that were not demoted for longest until the newcomer fits at its lowest (R8 of §4.3). If
// it never does, everybody gets back what they had.
func (p *rim) demoteFor(stream, quality int, now time.Duration) bool {
	order := slices.Clone(p.placed)

	// Those whose last demotion is longest ago come first, so that the loss goes round (Rim §4.3).
	slices.SortStableFunc(order, func(a, b *placement) int { return a.demoted - b.demoted })

	var before []placement
	var changed []*placement
	for _, x := range order {
		lowest := len(p.w.Apps[p.w.Streams[x.stream].App].Qualities) - 1
		if x.quality == lowest {
			continue
		}
		before, changed = append(before, *x), append(changed, x)

		// The share is given back and taken anew around each change of quality.
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

	// In vain: everybody gets the former quality back.
	for i, x := range changed {
		p.returnShares(x, 1)
		*x = before[i]
		p.returnShares(x, -1)
	}
	return false
}

// leave takes a session away, and promotes those that were demoted last ago for longest, where that fits.
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

// sharesLeft reports whether a placement's shares are left.
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

// placeStream puts a stream on one worker, its modules on several, or its frames on two.
func (p *rim) placeStream(stream, quality int, now time.Duration) bool {
	s := p.w.Streams[stream]
	whole := func(worker int) float64 { return p.wholeDemand(s, quality, worker) }

	if best := p.chooseWorker(whole, nil); best >= 0 {
		return p.keepPlacement(p.placeOn(best, stream, quality, allFrames), now)
	}
	return p.rule.cross && p.crossWorkers(stream, quality, now) || p.rule.split && p.splitStream(stream, quality, now)
}

// crossWorkers puts a stream's modules on workers one by one, those that are dear to part together (R5).
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

// wholeDemand is the share of a worker that all modules of a stream take.
func (p *rim) wholeDemand(s Stream, quality, worker int) (sum float64) {
	for m := range p.w.Apps[s.App].Modules {
		sum += p.demand(s, m, quality, worker)
	}
	return sum
}

// placeOn is a placement of all modules on one worker.
func (p *rim) placeOn(worker, stream, quality int, of part) *placement {
	modules := len(p.w.Apps[p.w.Streams[stream].App].Modules)
	return &placement{stream: stream, part: of, quality: quality, worker: slices.Repeat([]int{worker}, modules)}
}

// splitStream divides the frames of a stream that is too fast for every worker among the two that it fits best, so that least of them is left (R7). One of
// them is filled, since what is left is then in one piece.
func (p *rim) splitStream(stream, quality int, now time.Duration) bool {
	s := p.w.Streams[stream]
	if p.w.Apps[s.App].Stateful {
		return false
	}

	// What each worker could take of the frames.
	room := make([]float64, len(p.left))
	for i := range room {
		whole := p.wholeDemand(s, quality, i)
		if whole <= 1 {
			return false // a worker of its own would do
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

	// Both or none: a frame that comes late is as bad on either.
	a, b := p.placeOn(first, stream, quality, part{0, room[first]}), p.placeOn(second, stream, quality, part{room[first], 1})
	latency := p.w.Apps[s.App].Latency
	return p.latency(a) <= latency && p.latency(b) <= latency && p.keepPlacement(a, now) && p.keepPlacement(b, now)
}

// keepPlacement keeps a placement whose frames can be in time.
func (p *rim) keepPlacement(x *placement, now time.Duration) bool {
	// A placement that cannot meet the latency even when nobody else runs is none.
	if p.latency(x) > p.w.Apps[p.w.Streams[x.stream].App].Latency {
		return false
	}
	x.since = []segment{{now, x.quality, x.worker}}
	p.returnShares(x, -1)
	p.placed = append(p.placed, x)
	return true
}

// forcePlace puts a stream on the worker that the rule names, for best fit the one with most left, whether it fits or not.
func (p *rim) forcePlace(stream, quality int, now time.Duration) bool {
	best := p.chooseWorker(func(int) float64 { return 0 }, nil)

	// Best fit would take the fullest worker; the one with most left is overloaded least.
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

// chooseWorker is the worker for a share, which may differ by worker, by the rule; taken is what the stream has of it already. −1: there is none.
func (p *rim) chooseWorker(need func(worker int) float64, taken []float64) int {
	left := func(i int) float64 {
		if taken == nil {
			return p.left[i]
		}
		return p.left[i] - taken[i]
	}

	// All but best fit look at something else than what is left, so that they overload workers while others idle.

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

// latency is what a frame takes where nobody is in its way.
func (p *rim) latency(x *placement) time.Duration {
	app := p.w.Streams[x.stream].App
	a := &p.w.Apps[app]

	// Modules stand in an order in which each comes after those that it needs.
	until := make([]time.Duration, len(a.Modules))
	for m := range a.Modules {
		for _, before := range a.Modules[m].After {
			until[m] = max(until[m], until[before]+p.pass(a, x.worker, int(before), m))
		}
		until[m] += a.Modules[m].CPU + time.Duration(a.Modules[m].FanOut)*p.exec(app, m, x.quality, x.worker[m])
	}
	return slices.Max(until)
}

// pass is what a result takes from a module to the next.
func (p *rim) pass(a *Application, worker []int, from, to int) time.Duration {
	if worker[from] == worker[to] {
		return 0
	}
	return a.Modules[from].Serialize
}
