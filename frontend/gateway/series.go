package gateway

import (
	"math/bits"
	"sync"
	"time"
)

// seriesSeconds is the longest period that the page can show.
const seriesSeconds = 300

// latencyBuckets divide each power of two of microseconds into four.
const latencyBuckets = 4 * 24

// series records the outcomes of a model's requests, second by second.
type series struct {
	mu    sync.Mutex
	cells [seriesSeconds]cell // by second, modulo; guarded by mu
}

// cell is one second.
type cell struct {
	second    int64 // since the epoch; a cell of another second is stale
	good      uint32
	bad       map[string]uint32 // by reason; nil until a request is bad
	latencies [latencyBuckets]uint32
}

// addEnds counts n requests that ended now; reason is empty for good ones. elapsed is 0 without an output.
func (s *series) addEnds(now time.Time, n int, elapsed time.Duration, reason string) {
	second := now.Unix()
	s.mu.Lock()
	defer s.mu.Unlock()

	// The ring holds seriesSeconds: reset a cell of an earlier round.
	c := &s.cells[second%seriesSeconds]
	if c.second != second {
		*c = cell{second: second}
	}

	if reason == "" {
		c.good += uint32(n)
	} else {
		if c.bad == nil {
			c.bad = map[string]uint32{}
		}
		c.bad[reason] += uint32(n)
	}

	if elapsed > 0 {
		c.latencies[latencyBucket(elapsed)] += uint32(n)
	}
}

// latencyBucket returns 4·log2 of the microseconds, so a bucket is 19 % wide.
func latencyBucket(d time.Duration) int {
	us := uint64(max(d.Microseconds(), 1))

	// The two bits below the leading one select the quarter.
	exp := bits.Len64(us) - 1
	quarter := 0
	if exp >= 2 {
		quarter = int(us >> (exp - 2) & 3)
	}
	return min(4*exp+quarter, latencyBuckets-1)
}

// latencyOf returns the upper end of a bucket.
func latencyOf(bucket int) time.Duration {
	exp, quarter := bucket/4, bucket%4
	return time.Duration(float64(uint64(1)<<exp)*(1+float64(quarter+1)/4)) * time.Microsecond
}

// quantileOf returns the q-quantile of counts; 0 if there are none.
func quantileOf(counts *[latencyBuckets]uint32, q float64) time.Duration {
	var all uint64
	for _, n := range counts {
		all += uint64(n)
	}

	rank := uint64(q * float64(all))
	for i, n := range counts {
		if uint64(n) > rank {
			return latencyOf(i)
		}
		rank -= uint64(n)
	}
	return 0
}

// lastSeconds copies the cells of the last n whole seconds before now, oldest first.
func (s *series) lastSeconds(now time.Time, n int) []cell {
	out := make([]cell, n)
	s.mu.Lock()
	defer s.mu.Unlock()

	for i := range out {
		second := now.Unix() - int64(n) + int64(i)
		c := s.cells[second%seriesSeconds]

		// A cell of an earlier round: nothing ended in this second.
		if c.second != second {
			c = cell{second: second}
		}

		// Copies of a cell share its map, which requests continue to fill.
		if c.bad != nil {
			bad := make(map[string]uint32, len(c.bad))
			for r, k := range c.bad {
				bad[r] = k
			}
			c.bad = bad
		}
		out[i] = c
	}
	return out
}
