package dispatch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/core/engine"
)

// Naive is the result of a conventional dispatcher, under the same load and the same deferral rule: each request is
// an object that is queued by deadline and answered on its own channel. These dispatchers have no frontends,
// cancellation, lost backends or sub-clusters.
type Naive struct {
	Name       string  `json:"name"`
	RPS        float64 `json:"rps"`        // highest rate that passed; 0: none did
	Pushed     float64 `json:"pushed_rps"` // requests/s accepted when offered without a pause
	MissedPct  float64 `json:"missed_pct"` // of those, not sent in time
	AllocsPer  float64 `json:"allocs_per_req"`
	dispatcher func(Setting) naive
}

// naive takes requests and sends batches by itself. missed counts requests that no batch took in time.
type naive interface {
	enqueue(model uint32, deadline int64)
	missed() uint64
	stop()
}

var clock engine.Monotonic

func execOf(b int) int64 { return alpha*int64(b) + beta }

// compareNaive measures both naive dispatchers on the setting and on its number of cores: goroutines would use all
// cores.
func compareNaive(ctx context.Context, set Setting, o Options, progress func(string)) ([]Naive, error) {
	all := []Naive{
		{Name: "single mutex, time.AfterFunc, container/heap", dispatcher: newMutexed},
		{Name: "channel and goroutine per model", dispatcher: newChannels},
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(set.Cores))

	// Runs at real-time priority must rest in between, see rest.
	for i := range all {
		n := &all[i]
		time.Sleep(rest)

		// Offer without a pause first, to know where to search …
		s := n.offerRate(set, unpausedRate, o.Each)
		n.Pushed = float64(s.Sent) / o.Each.Seconds()
		n.MissedPct = 100 * float64(s.Dropped) / float64(max(1, s.Sent))
		n.AllocsPer = float64(s.Mallocs) / float64(max(1, s.Sent))

		// … then find the highest rate at which it meets its deadlines.
		_, err := highestRate(ctx, 0.9*n.Pushed, o.Tries, func(rate float64) error {
			time.Sleep(rest)
			s := n.offerRate(set, rate, o.Each)
			s.Mallocs = 0 // they may allocate
			err := s.checkLimits()
			progress(fmt.Sprintf("%s: %5.2f M/s: %s", n.Name, rate/1e6, verdictOf(err)))
			if err == nil {
				n.RPS = max(n.RPS, rate)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// offerRate runs a new dispatcher at a rate for d, with as many generators as the setting has cores.
func (n *Naive) offerRate(set Setting, rate float64, d time.Duration) Sample {
	x := n.dispatcher(set)
	var sent atomic.Uint64
	var lag atomic.Int64

	// Allocations of the set-up do not count.
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)

	var wg sync.WaitGroup
	for i := range set.Cores {
		wg.Go(func() {
			g := generator{rng: rand.New(rand.NewPCG(1, uint64(i))), models: set.Models, unpaused: rate >= unpausedRate, gap: 1e9 / rate * float64(set.Cores)}
			sent.Add(uint64(g.run(x, d, &lag)))
		})
	}

	wg.Wait()
	runtime.ReadMemStats(&after)
	s := Sample{Rate: rate, Sent: sent.Load(), Dropped: x.missed(), LagMax: lag.Load(), Mallocs: after.Mallocs - before.Mallocs}
	x.stop()
	return s
}

// unpausedRate is the rate that stands for requests without a pause between them.
const unpausedRate = 1e12

// generator is one core's source of requests.
type generator struct {
	rng      *rand.Rand
	models   int
	unpaused bool
	gap      float64 // ns between two requests
}

// run offers requests for d and returns their number. lag is raised to the longest delay behind the schedule; without
// pauses there is no schedule.
func (g *generator) run(x naive, d time.Duration, lag *atomic.Int64) (sent int) {
	start := int64(clock.Now())
	for now := start; now < start+int64(d); now = int64(clock.Now()) {
		due := min(int(float64(now-start)/g.gap)-sent, burst)
		if due > 0 && !g.unpaused {
			if l := now - start - int64(float64(sent)*g.gap); l > lag.Load() {
				lag.Store(l)
			}
		}
		if g.unpaused {
			due = burst
		}
		if due <= 0 {
			runtime.Gosched() // the dispatcher's goroutines need the core
		}

		// A deadline counts from the scheduled time, so a generator that is late does not ease the load.
		for range max(0, due) {
			at := start + int64(float64(sent)*g.gap)
			if g.unpaused {
				at = now
			}
			x.enqueue(uint32(g.rng.IntN(g.models)), at+slo)
			sent++
		}
	}
	return sent
}
