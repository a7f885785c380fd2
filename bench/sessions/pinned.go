package sessions

import (
	"container/heap"
	"slices"
	"time"
)

// step is a module of a frame that is ready for its worker.
type step struct {
	at     time.Duration
	order  int // order among steps of equal time
	frame  int
	module int
}

type steps []step

func (s steps) Len() int { return len(s) }
func (s steps) Less(i, j int) bool {
	return s[i].at < s[j].at || s[i].at == s[j].at && s[i].order < s[j].order
}
func (s steps) Swap(i, j int) { s[i], s[j] = s[j], s[i] }
func (s *steps) Push(x any)   { *s = append(*s, x.(step)) }
func (s *steps) Pop() any {
	last := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return last
}

// pinnedFrame is one frame on its way over its session's workers.
type pinnedFrame struct {
	x     *placement
	place segment
	begun time.Duration
	until []time.Duration // by module; −1: not ended
	left  int
}

// runPinned serves placements: every request runs alone, in order of arrival at its worker, and nothing is dropped.
// Late frames do not count as finished. The profiles contain the gain of running several requests on a GPU.
func (p *rim) runPinned(all []*placement, seed uint64) (t *tally, busy time.Duration) {
	t = newTally(len(p.w.Streams))

	free := make([]time.Duration, len(p.left))
	var frames []pinnedFrame
	var queue steps
	order := 0

	// Steps of one time run in the order of their creation, so that a run replays.
	push := func(at time.Duration, frame, module int) {
		order++
		heap.Push(&queue, step{at, order, frame, module})
	}

	// Every frame begins with the modules without predecessors.
	for _, x := range all {
		s := p.w.Streams[x.stream]
		a := &p.w.Apps[s.App]
		period := time.Duration(1e9 / s.FPS)
		for n, at := 0, s.From+phase(seed, x.stream, period); at < s.Until; n, at = n+1, at+period {
			if !x.part.hasFrame(n) {
				continue // the other worker's
			}
			f := pinnedFrame{x: x, place: x.segmentAt(at), begun: at, until: slices.Repeat([]time.Duration{-1}, len(a.Modules)), left: len(a.Modules)}
			frames = append(frames, f)
			for m := range a.Modules {
				if len(a.Modules[m].After) == 0 {
					push(at+a.Modules[m].CPU, len(frames)-1, m)
				}
			}
		}
	}

	for len(queue) > 0 {
		next := heap.Pop(&queue).(step)
		f := &frames[next.frame]
		app := p.w.Streams[f.x.stream].App
		a := &p.w.Apps[app]

		// A worker runs one request after another, without batches.
		worker := f.place.worker[next.module]
		work := time.Duration(a.Modules[next.module].FanOut) * p.exec(app, next.module, f.place.quality, worker)
		end := max(next.at, free[worker]) + work
		free[worker] = end
		busy += work

		f.until[next.module] = end
		if f.left--; f.left == 0 {
			t.countFrame(f.x.stream, end-f.begun <= a.Latency, false)
			t.noteLate(f.x.stream, (end-f.begun).Seconds()/a.Latency.Seconds()-1)
			t.accuracy, t.answers = t.accuracy+a.Qualities[f.place.quality].Accuracy, t.answers+1
			continue
		}
		p.followers(a, f, next.module, func(at time.Duration, module int) { push(at, next.frame, module) })
	}
	return t, busy
}

// followers calls begin for the modules for which module was the last predecessor.
func (p *rim) followers(a *Application, f *pinnedFrame, module int, begin func(at time.Duration, module int)) {
	for m := range a.Modules {
		if !slices.Contains(a.Modules[m].After, int32(module)) {
			continue
		}
		at, ready := time.Duration(0), true
		for _, before := range a.Modules[m].After {
			// A module with several predecessors begins with the last of them.
			ready = ready && f.until[before] >= 0
			at = max(at, f.until[before]+p.pass(a, f.place.worker, int(before), m))
		}
		if ready {
			begin(at+a.Modules[m].CPU, m)
		}
	}
}

// segmentAt returns the segment at a time.
func (x *placement) segmentAt(now time.Duration) segment {
	k := 0
	for k+1 < len(x.since) && x.since[k+1].from <= now {
		k++
	}
	return x.since[k]
}

// serveStreams admits the workload's streams and runs those that were placed.
func (p *rim) serveStreams(name string, seed uint64) Result {
	// Copy: serving changes the streams, and the caller's workload must not change.
	w := *p.w
	p.w = &w

	refused, longest := 0, time.Duration(0)
	var in []int
	for i := range w.Streams {
		now := time.Duration(0)
		if w.UntilFull {
			// Sessions come one after another, so only admitted ones take time.
			now = time.Duration(len(in)) * joinEvery
		}
		began := time.Now()
		ok := p.admitStream(i, now)
		longest = max(longest, time.Since(began))
		if ok {
			in = append(in, i)
			continue
		}
		refused++
		if w.UntilFull {
			break
		}
	}

	// Renumber the admitted streams; in is sorted.
	all := slices.Clone(p.placed)
	slices.SortStableFunc(all, func(a, b *placement) int { return a.stream - b.stream })
	var streams []Stream
	for _, i := range in {
		streams = append(streams, w.Streams[i])
	}
	for _, x := range all {
		x.stream, _ = slices.BinarySearch(in, x.stream)
	}
	w.Streams = streams
	w.schedule(len(streams))

	// The last arrival leaves first.
	if w.UntilFull {
		for k := len(streams) - 1; k >= 0; k-- {
			p.leave(k, w.Streams[k].Until)
		}
	}

	t, busy := p.runPinned(all, seed)
	r := t.result(&w, name, busy)
	r.Refused, r.AdmitMS, r.BatchMean = refused, longest.Seconds()*1e3, 1
	return r
}
