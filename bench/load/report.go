package load

import (
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"downbeat.dev/core/arrivals"
)

var errLimit = errors.New("the generator holds too many requests")

// Outcomes that the generator itself assigns; the others come from Options.Classify.
const (
	Served = "served"
	Late   = "late" // an output, but after the deadline
	Limit  = "generator limit"
)

// Report is the result of a run. Read it after Run has returned.
type Report struct {
	Models []Model
	Rows   []Row
	counters
	timeline *Timeline
	classify func(error) string
	start    time.Time
	elapsed  time.Duration
}

// Row is one model's result.
type Row struct {
	mu       sync.Mutex // guards the fields below while requests are under way
	Outcomes map[string]int64
	Latency  *hdrhistogram.Histogram // µs from the intended time of sending, answered requests only
	Offered  int64
	Good     int64
}

func newReport(models []Model, plan []arrivals.Arrival, classify func(error) string) *Report {
	if classify == nil {
		classify = func(err error) string { return err.Error() }
	}

	r := &Report{Models: models, Rows: make([]Row, len(models)), timeline: newTimeline(plan), classify: classify}
	for i := range r.Rows {
		r.Rows[i] = Row{Outcomes: map[string]int64{}, Latency: hdrhistogram.New(1, int64(time.Minute/time.Microsecond), 3)}
	}
	return r
}

// countEnd counts one request.
func (r *Report) countEnd(model int, due time.Time, slo time.Duration, err error) {
	took := time.Since(due)
	name := Served
	switch {
	case errors.Is(err, errLimit):
		name = Limit
	case err != nil:
		name = r.classify(err)
	case took > slo:
		name = Late
	}

	row := &r.Rows[model]
	row.mu.Lock()
	row.Offered++
	row.Outcomes[name]++
	if err == nil {
		// Values beyond the histogram's range count at its end.
		_ = row.Latency.RecordValue(min(max(took.Microseconds(), 1), row.Latency.HighestTrackableValue()))
	}
	if name == Served {
		row.Good++
	}
	row.mu.Unlock()

	if err != nil {
		took = -1
	}
	r.timeline.addRequest(due.Sub(r.start), took, name == Served)
	r.answered.Add(1)
	if name == Served {
		r.good.Add(1)
	}
}

// Timeline returns the outcomes over time.
func (r *Report) Timeline() *Timeline { return r.timeline }

// Sent and Ended are equal if every request was accounted for.
func (r *Report) Sent() int64  { return r.sent.Load() }
func (r *Report) Ended() int64 { return r.answered.Load() }

// Goodput returns the requests answered within their deadline, per second of sending.
func (r *Report) Goodput() float64 { return float64(r.good.Load()) / r.elapsed.Seconds() }

// LagMax returns the largest delay of the generator itself.
func (r *Report) LagMax() time.Duration { return time.Duration(r.lagMax.Load()) }

// BadPercent returns the percentage of requests not answered within their deadline.
func (r *Report) BadPercent() float64 {
	if r.Sent() == 0 {
		return 0
	}
	return 100 * float64(r.Sent()-r.good.Load()) / float64(r.Sent())
}

// Percentile returns a latency percentile over the answered requests of all models.
func (r *Report) Percentile(p float64) time.Duration {
	all := hdrhistogram.New(1, int64(time.Minute/time.Microsecond), 3)
	// Merge the histograms, which loses nothing: percentiles of percentiles would mean nothing.
	for i := range r.Rows {
		all.Merge(r.Rows[i].Latency)
	}
	return time.Duration(all.ValueAtQuantile(p)) * time.Microsecond
}

// Outcomes sums the outcomes over the models, sorted by count.
func (r *Report) Outcomes() (names []string, counts map[string]int64) {
	counts = map[string]int64{}
	for i := range r.Rows {
		for name, n := range r.Rows[i].Outcomes {
			counts[name] += n
		}
	}

	for name := range counts {
		names = append(names, name)
	}

	sort.Slice(names, func(i, j int) bool {
		if counts[names[i]] != counts[names[j]] {
			return counts[names[i]] > counts[names[j]]
		}
		return names[i] < names[j]
	})
	return names, counts
}

// Table prints a row per model and the sums of outcomes. batchMean, unless nil, returns the mean batch size of a
// model, 0 if unknown.
func (r *Report) Table(w io.Writer, batchMean func(model string) float64) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "model\toffered r/s\tgoodput r/s\tbad %\tp50 ms\tp99 ms\tp99.9 ms\tbatch\t")

	secs := r.elapsed.Seconds()
	for i := range r.Rows {
		row := &r.Rows[i]
		if row.Offered == 0 {
			continue
		}

		ms := func(p float64) float64 { return float64(row.Latency.ValueAtQuantile(p)) / 1000 }
		batch := "–"
		if batchMean != nil {
			if m := batchMean(r.Models[i].Name); m > 0 {
				batch = fmt.Sprintf("%.1f", m)
			}
		}

		fmt.Fprintf(tw, "%s\t%.1f\t%.1f\t%.2f\t%.1f\t%.1f\t%.1f\t%s\t\n", r.Models[i].Name, float64(row.Offered)/secs,
			float64(row.Good)/secs, 100*float64(row.Offered-row.Good)/float64(row.Offered), ms(50), ms(99), ms(99.9), batch)
	}
	tw.Flush()

	names, counts := r.Outcomes()
	var parts []string
	for _, n := range names {
		parts = append(parts, fmt.Sprintf("%d %s", counts[n], n))
	}
	fmt.Fprintf(w, "sent %d = %s; generator late by at most %.1f ms\n", r.Sent(), strings.Join(parts, " + "), float64(r.LagMax().Microseconds())/1000)
}
