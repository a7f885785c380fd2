package joint

import (
	"time"

	"downbeat.dev/core/sim"
)

// keptShare is the share of a session's frames that must be in time for it to count as served.
const keptShare = 0.99

// tally counts requests of a family, or of an application's frames.
type tally struct{ asked, good int }

// outcome is the result of a policy on a trace.
type outcome struct {
	of       []tally // families, then applications; a frame counts as all its requests
	sessions []tally // by served stream, in frames
	refused  int     // streams
	accuracy []float64
	answers  []float64     // by second of arrival, of services with a choice: Σ accuracy and number, in time
	busy     time.Duration // of the GPUs, on requests
	learning time.Duration // GPU time of learners
	end      time.Duration
}

func (t *trace) newOutcome(streams []stream) *outcome {
	seconds := int(t.span/time.Second) + 1
	o := &outcome{of: make([]tally, len(families)+len(t.apps)), sessions: make([]tally, len(streams)), refused: len(t.streams) - len(streams),
		accuracy: make([]float64, seconds), answers: make([]float64, seconds)}

	// Count all requests of families, including those that are never answered.
	for _, r := range t.requests {
		if r.At >= t.warm {
			o.of[r.Model].asked++
		}
	}
	return o
}

// countFrame counts a frame's end.
func (o *outcome) countFrame(t *trace, s stream, session int, inTime bool) {
	// All requests of a lost frame count as bad, whatever became of them.
	requests := 0
	for _, m := range t.apps[s.app].modules {
		requests += m.fanOut
	}

	app := &o.of[len(families)+s.app]
	app.asked += requests
	o.sessions[session].asked++
	if inTime {
		app.good += requests
		o.sessions[session].good++
	}
}

// countAnswers counts a batch: the answers in time, and their accuracy if there was a choice.
func (o *outcome) countAnswers(t *trace, w *sim.World, model int32, accuracy float64, finish sim.Time, requests []int32) {
	for _, r := range requests {
		if w.Deadline(r) < finish || w.Arrivals[r].At < t.warm {
			continue
		}

		// A frame's requests count when the frame ends.
		if int(model) < len(families) {
			o.of[model].good++
		}
		if len(t.services[model].networks) > 1 {
			second := min(int(w.Arrivals[r].At/time.Second), len(o.answers)-1)
			o.accuracy[second] += accuracy
			o.answers[second]++
		}
	}
}

// goodRate returns the requests/s answered in time; of frames, only those of frames in time.
func (o *outcome) goodRate(span time.Duration) float64 {
	good := 0
	for _, x := range o.of {
		good += x.good
	}
	return float64(good) / span.Seconds()
}

// lostShare returns the share of admitted requests that were not answered in time, and the largest share of any
// family or application.
func (o *outcome) lostShare() (all, worst float64) {
	// The mean hides who pays, so report the worst, too.
	var sum tally
	for _, x := range o.of {
		sum.asked, sum.good = sum.asked+x.asked, sum.good+x.good
		worst = max(worst, x.bad())
	}
	return sum.bad(), worst
}

func (x tally) bad() float64 {
	if x.asked == 0 {
		return 0
	}
	return 1 - float64(x.good)/float64(x.asked)
}

// meanAccuracy returns the mean accuracy of answers in time of services with a choice, and 1 minus that of the worst
// second.
func (o *outcome) meanAccuracy() (mean, largestDrop float64) {
	sum, answers := 0.0, 0.0

	// A second without answers has no accuracy.
	for second, n := range o.answers {
		if n > 0 {
			sum, answers = sum+o.accuracy[second], answers+n
			largestDrop = max(largestDrop, 1-o.accuracy[second]/n)
		}
	}
	return sum / max(1, answers), largestDrop
}

// keptSessions returns how many sessions had keptShare of their frames in time, and the share of frames in time over
// all served sessions.
func (o *outcome) keptSessions() (kept int, finish float64) {
	// Each session is a promise; frames are counted over all sessions.
	var sum tally
	for _, s := range o.sessions {
		sum.asked, sum.good = sum.asked+s.asked, sum.good+s.good
		if s.bad() <= 1-keptShare {
			kept++
		}
	}
	return kept, 1 - sum.bad()
}

// spareUsed returns the learners' share of the GPUs' time without a batch.
func (o *outcome) spareUsed() float64 {
	idle := gpus*o.end.Seconds() - o.busy.Seconds()
	return o.learning.Seconds() / max(idle, 1e-9)
}
