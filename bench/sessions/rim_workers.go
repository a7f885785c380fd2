package sessions

import (
	"slices"
	"time"
)

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
	need := make([]float64, len(p.left)) // by worker: what the modules before take
	for m := 0; m < modules; {
		// Modules from m to end are expensive to separate, so they go to one worker.
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

	// Of all pairs with room for all frames, take the one with the least room.
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

	// The fuller worker takes all that fits and the other one the rest.
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

	// Best fit: of the workers with enough space, the one that has least space left afterwards.
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
