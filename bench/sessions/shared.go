package sessions

import (
	"math"
	"time"
)

// sharing is how requests of several models use one GPU.
type sharing int

const (
	inSpace sharing = iota // all at once, each with the part of the GPU that it can use (Rim)
	inTime                 // one after another, each with the whole GPU
)

// overload is the result of one worker with frames at a rate.
type overload struct {
	perSecond []int         // ended frames, by second
	longest   time.Duration // longest time of a frame
}

// runShared offers one worker frames of an application for span, and counts those that end within it. Nothing is
// dropped: this is what Rim profiles (its figure 4), and the reason why it refuses sessions.
func runShared(a *Application, quality int, fps float64, how sharing, span time.Duration) overload {
	g := &sharedGPU{a: a, quality: quality, how: how, result: overload{perSecond: make([]int, int(span/time.Second))}}
	period := time.Duration(float64(time.Second) / fps)
	for at := time.Duration(0); at < span; at += period {
		g.beginFrame(at)
	}
	g.run(span)
	return g.result
}

// sharedGPU runs the requests of frames on one GPU. Its processors are delays, as elsewhere in this package.
type sharedGPU struct {
	a       *Application
	quality int
	how     sharing
	frames  []sharedFrame
	waiting []sharedModule // not begun, by their earliest begin
	running []sharedModule
	result  overload
}

type sharedFrame struct {
	begun time.Duration
	done  []bool // by module
	left  int
}

// sharedModule is a module of a frame: its requests one after another.
type sharedModule struct {
	frame, module int
	from          time.Duration // end of its processor time
	left          float64       // seconds of work at its full speed
}

func (g *sharedGPU) beginFrame(at time.Duration) {
	g.frames = append(g.frames, sharedFrame{begun: at, done: make([]bool, len(g.a.Modules)), left: len(g.a.Modules)})
	for m := range g.a.Modules {
		if len(g.a.Modules[m].After) == 0 {
			g.wait(len(g.frames)-1, m, at)
		}
	}
}

// wait inserts a module after those that may begin no later.
func (g *sharedGPU) wait(frame, module int, now time.Duration) {
	m := &g.a.Modules[module]
	alone := float64(m.FanOut) * g.a.exec(module, g.quality).Seconds() / m.Use
	w := sharedModule{frame, module, now + m.CPU, alone}

	i := len(g.waiting)
	g.waiting = append(g.waiting, w)
	for ; i > 0 && g.waiting[i-1].from > w.from; i-- {
		g.waiting[i] = g.waiting[i-1]
	}
	g.waiting[i] = w
}

// run advances time from one change to the next.
func (g *sharedGPU) run(span time.Duration) {
	for now := time.Duration(0); ; {
		for len(g.waiting) > 0 && g.waiting[0].from <= now && (g.how == inSpace || len(g.running) == 0) {
			g.running, g.waiting = append(g.running, g.waiting[0]), g.waiting[1:]
		}

		// If the modules could use more than the GPU has, slow all of them by the same factor.
		speed := g.speed()
		next := time.Duration(math.MaxInt64)
		if len(g.waiting) > 0 && g.waiting[0].from > now {
			next = g.waiting[0].from
		}
		for _, r := range g.running {
			next = min(next, now+time.Duration(math.Ceil(r.left/speed*1e9)))
		}
		if next >= span {
			return
		}

		passed := (next - now).Seconds() * speed
		now = next
		g.endModules(now, passed)
	}
}

// speed returns the factor on the speed of every module.
func (g *sharedGPU) speed() float64 {
	wanted := 0.0
	for _, r := range g.running {
		wanted += g.a.Modules[r.module].Use
	}
	return 1 / max(1, wanted)
}

// endModules subtracts the passed time from the running modules, and ends those that are complete.
func (g *sharedGPU) endModules(now time.Duration, passed float64) {
	var ended []sharedModule
	still := g.running[:0]
	for _, r := range g.running {
		if r.left -= passed; r.left > 1e-12 {
			still = append(still, r)
		} else {
			ended = append(ended, r)
		}
	}
	g.running = still

	// Follow the ended modules last: the next ones may begin at once.
	for _, r := range ended {
		f := &g.frames[r.frame]
		f.done[r.module] = true
		if f.left--; f.left == 0 {
			g.result.perSecond[int(now/time.Second)]++
			g.result.longest = max(g.result.longest, now-f.begun)
			continue
		}
		g.followModule(r, now)
	}
}

// followModule begins the modules of a frame for which one was the last predecessor.
func (g *sharedGPU) followModule(r sharedModule, now time.Duration) {
	f := &g.frames[r.frame]
	for m := range g.a.Modules {
		needs, ready := false, true
		for _, before := range g.a.Modules[m].After {
			needs = needs || int(before) == r.module
			ready = ready && f.done[before]
		}
		if needs && ready {
			g.wait(r.frame, m, now)
		}
	}
}

// meanAndScatter returns the mean and the standard deviation of the frames that ended per second, without the first
// seconds.
func (o overload) meanAndScatter(skip int) (mean, scatter float64) {
	all := o.perSecond[skip:]
	for _, n := range all {
		mean += float64(n) / float64(len(all))
	}
	for _, n := range all {
		scatter += (float64(n) - mean) * (float64(n) - mean) / float64(len(all))
	}
	return mean, math.Sqrt(scatter)
}

// highestRate returns the highest frame rate, in tenths, that a worker sustains: no frame takes longer than the
// application's latency.
func highestRate(sustains func(fps float64) bool) float64 {
	low, high := 0, 1000
	for high-low > 1 {
		if middle := (low + high) / 2; sustains(float64(middle) / 10) {
			low = middle
		} else {
			high = middle
		}
	}
	return float64(low) / 10
}
