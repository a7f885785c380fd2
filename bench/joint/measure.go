package joint

import (
	"time"

	"downbeat.dev/core/sim"
)

// keptShare is the share of a session's frames that must be in time for it to count as served.
const keptShare = 0.99

// tally counts requests of a kind: of a family, or of an application's frames.
type tally struct{ asked, good int }

// outcome is what a policy made of a trace.
type outcome struct {
	of       []tally // families, then applications; a frame counts as all its requests
	sessions []tally // by served stream, in frames
	refused  int     // streams
	accuracy []float64
	answers  []float64     // by second of arrival, of services with a choice: Σ accuracy and how many, in time
	busy     time.Duration // of the GPUs, on requests
	learning time.Duration // GPU time that learners had
	end      time.Duration
}

func (t *trace) newOutcome(streams []stream) *outcome {
	seconds := int(t.span/time.Second) + 1
	o := &outcome{of: make([]tally, len(families)+len(t.apps)), sessions: make([]tally, len(streams)), refused: len(t.streams) - len(streams),
		accuracy: make([]float64, seconds), answers: make([]float64, seconds)}

	// Requests of families that nobody ever answers are asked all the same.
	for _, r := range t.requests {
		if r.At >= t.warm {
			o.of[r.Model].asked++
		}
	}
	return o
}

// countFrame counts a frame's end.
func (o *outcome) countFrame(t *trace, s stream, session int, inTime bool) {
	// A frame that is lost was asked in vain, whatever became of its requests.
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

// countAnswers counts a batch: what is in time, and how accurate that is where there was a choice.
func (o *outcome) countAnswers(t *trace, w *sim.World, model int32, accuracy float64, finish sim.Time, requests []int32) {
	for _, r := range requests {
		if w.Deadline(r) < finish || w.Arrivals[r].At < t.warm {
			continue
		}

		// What a frame's request is worth is known when its frame ends.
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

// goodRate is the requests/s that were answered in time; of frames, those of frames in time.
func (o *outcome) goodRate(span time.Duration) float64 {
	good := 0
	for _, x := range o.of {
		good += x.good
	}
	return float64(good) / span.Seconds()
}

// lostShare is the share of what was let in that was not answered in time, and the largest of any family or application.
func (o *outcome) lostShare() (all, worst float64) {
	// The mean hides who pays, so that the worst stands beside it.
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

// meanAccuracy is that of the answers in time of services with a choice, and how far the worst second lies below 1.
func (o *outcome) meanAccuracy() (mean, largestDrop float64) {
	sum, answers := 0.0, 0.0

	// A second without any answer says nothing of accuracy.
	for second, n := range o.answers {
		if n > 0 {
			sum, answers = sum+o.accuracy[second], answers+n
			largestDrop = max(largestDrop, 1-o.accuracy[second]/n)
		}
	}
	return sum / max(1, answers), largestDrop
}

// keptSessions is how many sessions had their share of frames in time, and the share of all served sessions' frames.
func (o *outcome) keptSessions() (kept int, finish float64) {
	// A session is a promise of its own; frames are counted over all of them.
	var sum tally
	for _, s := range o.sessions {
		sum.asked, sum.good = sum.asked+s.asked, sum.good+s.good
		if s.bad() <= 1-keptShare {
			kept++
		}
	}
	return kept, 1 - sum.bad()
}

// spareUsed is the share of the GPUs' time without a batch that learners had.
func (o *outcome) spareUsed() float64 {
	idle := gpus*o.end.Seconds() - o.busy.Seconds()
	return o.learning.Seconds() / max(idle, 1e-9)
}
