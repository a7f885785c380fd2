package dispatch

import (
	"runtime"
	"slices"
	"sync"
	"time"
)

// runLoad offers rate requests/s in total for d. With wake, the models' first requests are spread over an SLO: models
// that start together send their batches together for long, in waves that do not occur otherwise.
func (r *rig) runLoad(rate float64, d time.Duration, wake bool) {
	if r.families != nil {
		defer r.keepHouse()()
	}

	var wg sync.WaitGroup
	for _, c := range r.cores {
		wg.Add(1)
		go func() {
			defer wg.Done()
			c.runCore(rate/float64(len(r.cores)), d, wake)
		}()
	}
	wg.Wait()
}

// resetCounts resets the counters.
func (r *rig) resetCounts(sampling bool) {
	for _, c := range r.cores {
		c.mu.Lock()
		c.batches, c.served, c.dropped, c.sent, c.lagMax, c.busy = 0, 0, 0, 0, 0, 0
		if c.sampling = sampling; sampling && c.delays == nil {
			c.delays = make([]int64, 0, 1<<20)
		}
		c.delays = c.delays[:0]
		c.mu.Unlock()
	}
}

// Sample is the result of one run at one rate.
type Sample struct {
	Rate             float64 // offered
	Sent             uint64
	Dropped, Batches uint64
	LagMax           int64 // largest lag of the generator, ns
	Busy             time.Duration
	Mallocs          uint64
	Delays           []int64 // sorted
}

// measureRate warms up at rate and measures for d. It approaches the rate from below: an earlier overload at a higher
// rate leaves requests with almost no budget and tiny batches, and a scheduler that is late with these at the full
// rate stays late.
func (r *rig) measureRate(rate float64, warm, d time.Duration, delays bool) Sample {
	r.resetCounts(delays)
	r.runLoad(rate/4, warm, true)
	r.runLoad(rate, warm, false)

	// Collect the garbage of the warm-up now, not during the measurement.
	runtime.GC()
	r.resetCounts(delays)

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r.runLoad(rate, d, false)
	runtime.ReadMemStats(&after)

	s := Sample{Rate: rate, Mallocs: after.Mallocs - before.Mallocs}
	for _, c := range r.cores {
		c.mu.Lock()
		s.Sent += c.sent
		s.Dropped += c.dropped
		s.Batches += c.batches
		s.LagMax = max(s.LagMax, c.lagMax)
		s.Busy += c.busy
		s.Delays = append(s.Delays, c.delays...)
		c.mu.Unlock()
	}

	slices.Sort(s.Delays)
	return s
}
