package load

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"downbeat.dev/core/arrivals"
)

// binsMax bounds the memory of a timeline: a bin takes about 20 KB.
const binsMax = 240

// Timeline counts requests by the time at which they were due.
type Timeline struct {
	Width time.Duration // of a bin
	bins  []bin
}

type bin struct {
	mu      sync.Mutex
	offered int64
	good    int64
	latency *hdrhistogram.Histogram // µs, of answered requests; nil: none
}

// newTimeline covers a plan with at most binsMax bins of whole seconds.
func newTimeline(plan []arrivals.Arrival) *Timeline {
	// A bin is the smallest whole number of seconds with which binsMax bins cover the plan.
	span := time.Second
	if n := len(plan); n > 0 {
		span = max(span, plan[n-1].At+1)
	}
	width := ((span + binsMax - 1) / binsMax).Truncate(time.Second)
	if width*binsMax < span {
		width += time.Second
	}
	return &Timeline{Width: width, bins: make([]bin, (span+width-1)/width)}
}

// addRequest counts a request that was due at a time after the start; took is negative for an unanswered one.
func (t *Timeline) addRequest(due, took time.Duration, good bool) {
	// By rounding, a time may lie beyond the plan: count it in the last bin.
	b := &t.bins[min(max(0, int(due/t.Width)), len(t.bins)-1)]
	b.mu.Lock()
	defer b.mu.Unlock()
	b.offered++
	if good {
		b.good++
	}

	if took < 0 {
		return
	}
	if b.latency == nil {
		b.latency = hdrhistogram.New(1, int64(time.Minute/time.Microsecond), 2)
	}
	_ = b.latency.RecordValue(min(max(took.Microseconds(), 1), b.latency.HighestTrackableValue()))
}

// Moment is one bin of a Timeline.
type Moment struct {
	At            time.Duration // its beginning
	Offered, Good float64       // requests/s
	P50, P99      time.Duration // of answered requests; 0: none
}

// Moments returns the bins in order. The end of the plan may cut the last one short.
func (t *Timeline) Moments() []Moment {
	var out []Moment
	for i := range t.bins {
		b := &t.bins[i]
		b.mu.Lock()
		m := Moment{At: time.Duration(i) * t.Width, Offered: float64(b.offered) / t.Width.Seconds(), Good: float64(b.good) / t.Width.Seconds()}
		if b.latency != nil {
			m.P50, m.P99 = time.Duration(b.latency.ValueAtQuantile(50))*time.Microsecond, time.Duration(b.latency.ValueAtQuantile(99))*time.Microsecond
		}
		b.mu.Unlock()
		out = append(out, m)
	}
	return out
}
