package rdma

import (
	"math/bits"
	"sync"
	"time"
)

// delays is a sliding histogram of durations: four windows of delayWindow each, log-linear buckets
// with 8 steps per power of two (at most 12.5 % off, rounded up). Memory is fixed.
type delays struct {
	mu      sync.Mutex // protects all; held for a few stores
	windows [delayWindows][delayBuckets]uint32
	counts  [delayWindows]uint64
	at      int           // current window
	since   time.Duration // when it began, by the node's clock
}

const (
	delayWindows = 4
	delayWindow  = 5 * time.Second
	delaySteps   = 3                      // log2 of steps per power of two
	delayBuckets = (36 + 1) << delaySteps // up to 2^39 ns
)

func delayBucket(d time.Duration) int {
	v := uint64(max(d, 1))
	k := bits.Len64(v) - 1
	// Below 2^4 each value has its own bucket.
	if k <= delaySteps {
		return int(v)
	}
	b := (k-delaySteps)<<delaySteps + int(v>>(k-delaySteps))
	return min(b, delayBuckets-1)
}

// delayBound is the largest duration of a bucket.
func delayBound(b int) time.Duration {
	if b < 2<<delaySteps {
		return time.Duration(b)
	}
	k := b>>delaySteps - 1
	return time.Duration(uint64(b&(1<<delaySteps-1)|1<<delaySteps+1)<<k - 1)
}

// addDelay counts d, seen at now.
func (h *delays) addDelay(now, d time.Duration) {
	h.mu.Lock()
	h.advanceWindow(now)
	h.windows[h.at][delayBucket(d)]++
	h.counts[h.at]++
	h.mu.Unlock()
}

// advanceWindow moves on to the window of now, emptying those passed.
func (h *delays) advanceWindow(now time.Duration) {
	for i := 0; now-h.since >= delayWindow; i++ {
		if i == delayWindows {
			h.since = now
			return
		}
		h.at = (h.at + 1) % delayWindows
		h.windows[h.at] = [delayBuckets]uint32{}
		h.counts[h.at] = 0
		h.since += delayWindow
	}
}

// readPercentiles returns the percentiles of the windows up to now.
func (h *delays) readPercentiles(now time.Duration) Delay {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.advanceWindow(now)

	var d Delay
	for _, c := range h.counts {
		d.Count += c
	}
	if d.Count == 0 {
		return d
	}

	// One pass finds all three: the buckets are in order, and each percentile lies where its rank is passed.
	var seen uint64
	for b := range delayBuckets {
		for w := range h.windows {
			seen += uint64(h.windows[w][b])
		}

		bound := delayBound(b)
		if d.P50 == 0 && seen*2 >= d.Count {
			d.P50 = bound
		}
		if d.P99 == 0 && seen*100 >= d.Count*99 {
			d.P99 = bound
		}
		if seen*1000 >= d.Count*999 {
			d.P999 = bound
			break
		}
	}
	return d
}
