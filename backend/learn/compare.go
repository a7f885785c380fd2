package learn

import "time"

// Sizes of a comparison with the first weights, in samples of the present.
const (
	comparedLeast = 8
	comparedMost  = 32
)

// Compared is the result of comparing the serving weights with the learner's first weights on the same samples of the
// present: the accuracy that learning has gained or lost.
type Compared struct {
	Version        int // of the serving weights
	Samples        int
	Serving, First float64 // share of right answers
}

// BeginComparison makes brief steps compare the serving weights with the learner's first weights, on the samples
// since the previous comparison, at most the latest 32. It does nothing with fewer than 8 samples.
func (l *Learner) BeginComparison() {
	if list := l.samples.latest; l.comparing == nil && len(list) >= comparedLeast {
		l.comparing, l.samples.latest = list, nil
	}
}

// compareSome answers a batch of the comparison under way, and reports whether there is one. Most answers of the serving
// weights were given to requests.
func (l *Learner) compareSome(r *Report) (did bool, err error) {
	list := l.comparing
	if list == nil {
		return false, nil
	}

	// Before the first publication, the first weights serve.
	first := l.beginning
	if first == nil {
		first = l.serving
	}

	r.Work = Judging
	for _, j := range [2]*judge{l.serving, first} {
		if missing := j.unanswered(list, j.batch); len(missing) > 0 {
			r.Inputs = len(missing)
			return true, j.seeSome(missing)
		}
	}

	l.compared = Compared{Version: l.Version(), Samples: len(list), Serving: l.serving.rightShare(list), First: first.rightShare(list)}
	l.comparing = nil
	l.serving.forgetMany()
	first.forgetMany()
	return true, nil
}

// rightShare returns the share of right answers among the known ones.
func (j *judge) rightShare(list []Sample) float64 {
	a := j.countKnown(list)
	return float64(a.Right) / float64(max(1, a.Labelled))
}

// takeCompared returns a comparison that has ended since the previous call.
func (l *Learner) takeCompared() (c Compared, ended bool) {
	c, l.compared = l.compared, Compared{}
	return c, c.Samples > 0
}

// Standing is the published state of a live learner.
type Standing struct {
	Model     string          `json:"model"`
	Version   int             `json:"version"`       // of the serving weights
	First     int             `json:"first_version"` // with which the learner began
	Versions  []int           `json:"versions"`      // versions that can be rolled back to, and the serving one
	Learning  bool            `json:"learning"`      // a drift was detected, and no rollback since
	Samples   int             `json:"samples"`       // labelled
	Steps     int             `json:"training_steps"`
	Drifts    int             `json:"drifts"`
	Published int             `json:"published"`
	Discarded int             `json:"discarded"` // candidates: worse, not finite, or not publishable
	Accuracy  []AccuracyAfter `json:"accuracy"`  // the oldest first; of the last minutes
}

// AccuracyAfter is a comparison and the time at which it was made.
type AccuracyAfter struct {
	Ago     float64 `json:"seconds_ago"`
	Version int     `json:"version"`
	Samples int     `json:"samples"`
	Serving float64 `json:"serving"` // share of right answers of the serving weights
	First   float64 `json:"first"`   // the same, of the weights with which the learner began

	at time.Duration // since the learner began
}

// standing returns a learner's state. The caller adds the comparisons.
func (l *Learner) standing() Standing {
	c := &l.counts
	return Standing{Version: l.Version(), First: l.start.Number, Versions: l.numbers(), Learning: l.learning, Samples: c.Labelled, Steps: c.Steps,
		Drifts: c.Drifts, Published: c.Published, Discarded: c.Worse + c.NotFinite + c.Unpublished}
}
