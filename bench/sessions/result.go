package sessions

import (
	"fmt"
	"io"
	"time"
)

// Result is the result of one policy on one workload.
type Result struct {
	Workload     string  `json:"workload"`
	Policy       string  `json:"policy"`
	Workers      int     `json:"workers"`
	Sessions     int     `json:"sessions"` // admitted
	Refused      int     `json:"refused"`
	FinishPct    float64 `json:"finish_pct"`     // frames in time, of all admitted sessions' frames
	FinishPctMin float64 `json:"finish_pct_min"` // of the worst session
	LatePct      float64 `json:"late_pct"`       // frames that ended after their latency; the other bad frames were dropped
	Utilization  float64 `json:"utilization"`    // of the GPUs over the whole run
	Accuracy     float64 `json:"accuracy"`       // mean of the answers
	BatchMean    float64 `json:"batch_mean"`     // of a request
	AdmitMS      float64 `json:"admit_ms"`       // the longest admission, in real time; 0: there was none
	ByApp        []Share `json:"by_app"`
}

// Share is the result of an application's sessions.
type Share struct {
	App       string  `json:"app"`
	Sessions  int     `json:"sessions"`
	FinishPct float64 `json:"finish_pct"`
	OverPct   float64 `json:"over_pct"` // excess of the latest frame over its latency; 0: none ended late
}

// count counts the ends of frames.
type count struct {
	frames, good, late int
	over               float64 // the latest frame's excess, relative to its latency
}

// tally is a run's frames by session.
type tally struct {
	by       []count
	accuracy float64 // Σ over answers
	answers  float64
}

func newTally(sessions int) *tally { return &tally{by: make([]count, sessions)} }

// countFrame counts one frame.
func (t *tally) countFrame(session int, inTime, dropped bool) {
	c := &t.by[session]
	c.frames++
	if inTime {
		c.good++
	} else if !dropped {
		c.late++
	}
}

// noteLate records a late frame's excess, relative to its latency.
func (t *tally) noteLate(session int, over float64) {
	t.by[session].over = max(t.by[session].over, over)
}

// result computes the percentages of a tally.
func (t *tally) result(w *Workload, policy string, busy time.Duration) Result {
	r := Result{Workload: w.Name, Policy: policy, Workers: w.Workers, Sessions: len(t.by), FinishPctMin: 100,
		Utilization: busy.Seconds() / w.Span.Seconds() / float64(w.Workers)}

	var all count
	apps := make([]count, len(w.Apps))
	sessions := make([]int, len(w.Apps))
	for i, c := range t.by {
		all.frames, all.good, all.late = all.frames+c.frames, all.good+c.good, all.late+c.late
		r.FinishPctMin = min(r.FinishPctMin, percentOf(c.good, c.frames))

		of := &apps[w.Streams[i].App]
		of.frames, of.good = of.frames+c.frames, of.good+c.good
		of.over = max(of.over, c.over)
		sessions[w.Streams[i].App]++
	}

	r.FinishPct, r.LatePct = percentOf(all.good, all.frames), percentOf(all.late, all.frames)
	if t.answers > 0 {
		r.Accuracy = t.accuracy / t.answers
	}

	for k := range apps {
		if sessions[k] > 0 {
			r.ByApp = append(r.ByApp, Share{w.Apps[k].Name, sessions[k], percentOf(apps[k].good, apps[k].frames), 100 * apps[k].over})
		}
	}
	return r
}

// percentOf returns a percentage; 100 if all is 0.
func percentOf(part, all int) float64 {
	if all == 0 {
		return 100
	}
	return 100 * float64(part) / float64(all)
}

// WriteTable prints results for people.
func WriteTable(w io.Writer, all []Result) {
	fmt.Fprintf(w, "%-8s %-18s %8s %9s %8s %9s %9s %7s %7s %9s %6s %9s\n", "workload", "policy", "workers", "sessions", "refused", "finish %", "worst %", "late %", "busy %", "accuracy", "batch", "admit ms")
	for _, r := range all {
		fmt.Fprintf(w, "%-8s %-18s %8d %9d %8d %9.2f %9.2f %7.2f %7.2f %9.3f %6.2f %9.2f\n", r.Workload, r.Policy, r.Workers, r.Sessions, r.Refused,
			r.FinishPct, r.FinishPctMin, r.LatePct, 100*r.Utilization, r.Accuracy, r.BatchMean, r.AdmitMS)
	}
}
