package learn

import "time"

// Samples of the present that a comparison with the first weights takes.
const (
	comparedLeast = 8
	comparedMost  = 32
)

// Compared is how the weights that serve and those that the learner began with answered the same samples of the present:
// what learning has gained, or lost.
type Compared struct {
	Version        int // that serves
	Samples        int
	Serving, First float64 // shares that were answered rightly
}

// comparison is one that steps are making. What is published meanwhile ends it.
type comparison struct {
	list           []Sample
	serving, first []bool
}

// BeginComparison has brief steps compare the weights that serve with those that the learner began with, on the samples
// that came since the comparison before, the latest 32 at most. Of fewer than 8 there is none.
func (l *Learner) BeginComparison() {
	if list := l.samples.latest; l.comparing == nil && len(list) >= comparedLeast {
		l.comparing, l.samples.latest = &comparison{list: list}, nil
	}
}

// compareSome answers a batch of the comparison that has begun, and tells whether there is one.
func (l *Learner) compareSome(r *Report) (did bool, err error) {
	c := l.comparing
	if c == nil {
		return false, nil
	}

	// Until something is published the first weights serve.
	r.Work = Judging
	switch {
	case len(c.serving) < len(c.list):
		c.serving, err = l.serving.answerNext(c.list, c.serving, r)
	case l.beginning != nil:
		c.first, err = l.beginning.answerNext(c.list, c.first, r)
	}
	if l.beginning == nil {
		c.first = c.serving
	}

	if err == nil && len(c.serving) == len(c.list) && len(c.first) == len(c.list) {
		l.compared = Compared{Version: l.Version(), Samples: len(c.list), Serving: rightShare(c.serving), First: rightShare(c.first)}
		l.comparing = nil
	}
	return true, err
}

// answerNext answers a batch of the samples behind those that right tells of, and appends to it.
func (j *judge) answerNext(list []Sample, right []bool, r *Report) ([]bool, error) {
	rest := list[len(right):]
	rest = rest[:min(j.batch, len(rest))]
	now, err := j.answerSamples(rest)
	r.Inputs += len(rest)
	return append(right, now.right...), err
}

// takeCompared returns a comparison that has ended since the call before.
func (l *Learner) takeCompared() (c Compared, ended bool) {
	c, l.compared = l.compared, Compared{}
	return c, c.Samples > 0
}

// Standing is what is told of a live learner.
type Standing struct {
	Model     string          `json:"model"`
	Version   int             `json:"version"`       // that serves
	First     int             `json:"first_version"` // that the learner began with
	Versions  []int           `json:"versions"`      // that can be put in force again, and the serving one
	Learning  bool            `json:"learning"`      // a drift was seen, and no rollback since
	Samples   int             `json:"samples"`       // with a class
	Steps     int             `json:"training_steps"`
	Drifts    int             `json:"drifts"`
	Published int             `json:"published"`
	Discarded int             `json:"discarded"` // candidates: worse, no numbers, or not to be published
	Accuracy  []AccuracyAfter `json:"accuracy"`  // the oldest first; of the last minutes
}

// AccuracyAfter is a comparison and when it was made.
type AccuracyAfter struct {
	Ago     float64 `json:"seconds_ago"`
	Version int     `json:"version"`
	Samples int     `json:"samples"`
	Serving float64 `json:"serving"` // share of the samples that the serving weights answered rightly
	First   float64 `json:"first"`   // the same, of the weights that the learner began with

	at time.Duration // since the learner began
}

// standing tells how a learner stands; its comparisons are the caller's.
func (l *Learner) standing() Standing {
	c := &l.counts
	return Standing{Version: l.Version(), First: l.start.Number, Versions: l.numbers(), Learning: l.learning, Samples: c.Labelled, Steps: c.Steps,
		Drifts: c.Drifts, Published: c.Published, Discarded: c.Worse + c.NotFinite + c.Unpublished}
}
