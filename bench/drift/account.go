package drift

import (
	"fmt"
	"strings"
	"time"

	"downbeat.dev/backend/learn"
)

// accounting is a policy that tells on what it has spent GPU time.
type accounting interface{ account() string }

// account names the parts of the GPU time that ours has spent. The rest is time that no learner used, most of it before
// the first drift, and room in batches that were not full.
func (o *ours) account() string {
	steps, answered := 0, make([]int, len(answerParts))
	for _, l := range o.learners {
		c := l.Counts()
		steps += c.Steps
		for i, p := range answerParts {
			answered[i] += p.count(c.Answered)
		}
	}

	percent := func(d time.Duration) float64 { return 100 * d.Seconds() / o.given.Seconds() }
	rest := 100 - percent(time.Duration(steps)*trainTime())
	text := []string{fmt.Sprintf("%d training steps %.1f", steps, 100-rest)}
	for i, p := range answerParts {
		share := percent(time.Duration(answered[i]) * answerTime(batchMax) / batchMax)
		rest -= share
		text = append(text, fmt.Sprintf("%s %.1f", p.name, share))
	}
	return fmt.Sprintf("ours on %d GPUs had %.1f s of GPU time for learning, of which in %%: %s, the rest %.1f", o.setting.GPUs, o.given.Seconds(), strings.Join(text, ", "), rest)
}

// answerParts are the purposes of a learner's answers.
var answerParts = []struct {
	name  string
	count func(learn.Answered) int
}{
	{"alarm", func(a learn.Answered) int { return a.Watched }},
	{"reference", func(a learn.Answered) int { return a.Reference }},
	{"period", func(a learn.Answered) int { return a.Window }},
	{"serving weights", func(a learn.Answered) int { return a.Serving }},
	{"candidates", func(a learn.Answered) int { return a.Candidates }},
	{"version before", func(a learn.Answered) int { return a.Previous }},
	{"known versions", func(a learn.Answered) int { return a.Known }},
	{"first data", func(a learn.Answered) int { return a.First }},
}
