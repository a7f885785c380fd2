package learn

import (
	"math"

	"downbeat.dev/backend/train"
	"downbeat.dev/core/plan"
)

// judgeBatch is the number of inputs that a judge answers at a time if its learner's steps are not brief.
const judgeBatch = 64

// seenMost bounds the samples whose answers a judge keeps: the windows of several periods and the reference.
const seenMost = 8 * driftMax

// A version's answers to requests are believed as long as at most believedLeast answers, and one in believedShare, differ
// from those given here: a GPU may round otherwise.
const (
	believedLeast = 2
	believedShare = 20
	// believedApart is the difference of two probabilities of a sample's class that rounding explains.
	believedApart = 0.05
)

// judge answers samples with one set of weights.
type judge struct {
	version   int // the weights' number; 0: they were never published
	checked   int // answers given here to samples that say how this version answered them
	differed  int // from what the samples say
	predictor *train.Predictor
	exits     int // early exits of the net
	batch     int // inputs at a time
	images    []byte
	seen      map[*byte]sight // answers to samples that are used again, by the address of their first byte
}

// sight is the answer of weights to one sample, or to several.
type sight struct {
	right    []bool
	sure     []float32 // the probability of the sample's class
	exits    [][]bool  // as right, for each early exit
	features plan.Features
}

func newJudge(o Options, version int, weights []float32) (*judge, error) {
	// Drift is detected in the features before the head, so the graph outputs these, too.
	m, err := o.Net.Probing(weights)
	if err != nil {
		return nil, err
	}

	// An answer takes a third of the time of a training step with as many inputs.
	batch := judgeBatch
	if o.Brief {
		batch = o.Batch
	}
	p, err := train.NewPredictor(o.Library, m, batch)
	if err != nil {
		return nil, err
	}
	return &judge{version: version, predictor: p, exits: len(o.Net.Exits), batch: batch, images: make([]byte, batch*int(o.Net.H*o.Net.W)*3), seen: map[*byte]sight{}}, nil
}

func (j *judge) close() { j.predictor.Close() }

// answerSamples returns, for each sample, whether the net and each exit give its class the best score, and its
// features.
func (j *judge) answerSamples(list []Sample) (all sight, err error) {
	all.exits = make([][]bool, j.exits)
	size := len(j.images) / j.batch
	for at := 0; at < len(list); at += j.batch {
		// The graph has a fixed batch size, so answer the list in batches.
		n := min(j.batch, len(list)-at)
		for i, s := range list[at : at+n] {
			copy(j.images[i*size:], s.Input)
		}
		out, err := j.predictor.Predict(j.images)
		if err != nil {
			return all, err
		}

		// The rest of a partial batch holds old inputs; ignore its outputs.
		all.right = j.appendRight(all.right, out[scoresOutput], list[at:at+n])
		all.sure = j.appendSure(all.sure, out[scoresOutput], list[at:at+n])
		for k := range all.exits {
			all.exits[k] = j.appendRight(all.exits[k], out[scoresOutput+train.ExitSuffix(k+1)], list[at:at+n])
		}
		f := &all.features
		f.Dim = len(out["features"]) / j.batch
		f.Values = append(f.Values, out["features"][:n*f.Dim]...)
	}
	return all, nil
}

// appendRight appends, for each sample, whether its class has the best score.
func (j *judge) appendRight(right []bool, scores []float32, list []Sample) []bool {
	classes := len(scores) / j.batch
	for i, s := range list {
		right = append(right, bestClass(scores[i*classes:(i+1)*classes]) == s.Class)
	}
	return right
}

// appendSure appends, for each sample, the probability that the scores give to its class.
func (j *judge) appendSure(sure, scores []float32, list []Sample) []float32 {
	classes := len(scores) / j.batch
	for i, s := range list {
		sure = append(sure, probability(scores[i*classes:(i+1)*classes], s.Class))
	}
	return sure
}

// unseen returns at most most samples that see and seeSome have not answered: their features are not known.
func (j *judge) unseen(list []Sample, most int) []Sample {
	return pickUnknown(list, most, func(s Sample) bool { _, ok := j.seen[&s.Input[0]]; return ok })
}

// unanswered is unseen without the samples that these weights answered when they were requests.
func (j *judge) unanswered(list []Sample, most int) []Sample {
	return pickUnknown(list, most, func(s Sample) bool { _, known := j.isRight(s); return known })
}

// unjudged is unanswered with the samples of which only the answered class is known, and not how sure it was.
func (j *judge) unjudged(list []Sample, most int) []Sample {
	return pickUnknown(list, most, func(s Sample) bool { _, known := j.isSure(s); return known })
}

// pickUnknown returns the first samples of which something is not known, at most most.
func pickUnknown(list []Sample, most int, known func(Sample) bool) (fresh []Sample) {
	for _, s := range list {
		if len(fresh) == most {
			break
		}
		if !known(s) {
			fresh = append(fresh, s)
		}
	}
	return fresh
}

// isRight reports whether these weights answer a sample rightly, if they have answered it: here, or as a request.
func (j *judge) isRight(s Sample) (right, known bool) {
	if one, ok := j.seen[&s.Input[0]]; ok {
		return one.right[0], true
	}
	return s.Served.Class == s.Class, j.believes() && j.hasServed(s)
}

// isSure returns the probability that these weights give to a sample's class, if it is known: computed here, or when the
// sample was a request.
func (j *judge) isSure(s Sample) (sure float32, known bool) {
	if one, ok := j.seen[&s.Input[0]]; ok {
		return one.sure[0], true
	}
	return s.Served.Sure, s.Served.Sure > 0 && j.believes() && j.hasServed(s)
}

// hasServed reports whether a sample says how this version answered it.
func (j *judge) hasServed(s Sample) bool { return j.version != 0 && s.Served.Version == j.version }

// believes reports whether what samples say of this version agrees with its answers here, but for some. It does not if a
// client errs, or lies, or names the answers of an early exit; else that would choose the weights that serve.
func (j *judge) believes() bool { return j.differed <= believedLeast+j.checked/believedShare }

// seeSome answers samples and keeps the answers.
func (j *judge) seeSome(list []Sample) error {
	now, err := j.answerSamples(list)
	if err != nil {
		return err
	}

	f := now.features
	for i, s := range list {
		one := sight{right: now.right[i : i+1], sure: now.sure[i : i+1], features: plan.Features{Dim: f.Dim, Values: f.Values[i*f.Dim : (i+1)*f.Dim]}}
		for k := range now.exits {
			one.exits = append(one.exits, now.exits[k][i:i+1])
		}
		j.seen[&s.Input[0]] = one
		j.check(s, one)
	}
	return nil
}

// check compares an answer given here with what the sample says.
func (j *judge) check(s Sample, here sight) {
	if !j.hasServed(s) {
		return
	}

	j.checked++
	said := s.Served
	apart := math.Abs(float64(here.sure[0] - said.Sure))
	if here.right[0] != (said.Class == s.Class) || said.Sure > 0 && apart > believedApart {
		j.differed++
	}
}

// see is answerSamples with a cache: each sample is answered once. answered is the number of samples that were not in
// the cache.
func (j *judge) see(list []Sample) (all sight, answered int, err error) {
	fresh := j.unseen(list, len(list))
	if err := j.seeSome(fresh); err != nil {
		return all, 0, err
	}

	all.exits = make([][]bool, j.exits)
	for _, s := range list {
		one := j.seen[&s.Input[0]]
		all.right = append(all.right, one.right...)
		all.features.Dim = one.features.Dim
		all.features.Values = append(all.features.Values, one.features.Values...)
		for k := range all.exits {
			all.exits[k] = append(all.exits[k], one.exits[k]...)
		}
	}
	return all, len(fresh), nil
}

// judgeSamples returns, for each sample, whether it is answered rightly, and the evidence about the exits on those that
// were answered here. answered is the number of samples whose answer was not known.
func (j *judge) judgeSamples(list []Sample) (right []bool, exits evidence, answered int, err error) {
	fresh := j.unjudged(list, len(list))
	if err := j.seeSome(fresh); err != nil {
		return nil, exits, 0, err
	}

	for _, s := range list {
		one, _ := j.isRight(s)
		right = append(right, one)
		if seen, ok := j.seen[&s.Input[0]]; ok {
			exits.addExits(seen)
		}
	}
	return right, exits, len(fresh), nil
}

// countKnown counts the samples whose answers are known, and the right ones of these.
func (j *judge) countKnown(list []Sample) (a plan.Answers) {
	for _, s := range list {
		right, known := j.isRight(s)
		if known {
			a.Labelled++
		}
		if right && known {
			a.Right++
		}
	}
	return a
}

// forgetMany drops the answers if there are many, most of which are not used again. A look or judgement must have ended:
// until then it uses its answers repeatedly.
func (j *judge) forgetMany() {
	if len(j.seen) > seenMost {
		clear(j.seen)
	}
}

// Answer returns, for each sample, whether a net with these weights answers its class, and the sample's features.
func Answer(net train.Net, weights []float32, list []Sample, library string) (right []bool, f plan.Features, err error) {
	return AnswerAt(0, net, weights, list, library)
}

// AnswerAt is Answer by an early exit of the net, from 1; 0: by the whole net.
func AnswerAt(exit int, net train.Net, weights []float32, list []Sample, library string) (right []bool, f plan.Features, err error) {
	j, err := newJudge(Options{Net: net, Library: library}, 0, weights)
	if err != nil {
		return nil, f, err
	}
	defer j.close()

	all, err := j.answerSamples(list)
	if err == nil && exit > 0 {
		all.right = all.exits[exit-1]
	}
	return all.right, all.features, err
}

// Accuracy returns the share of samples that a net with these weights answers rightly.
func Accuracy(net train.Net, weights []float32, list []Sample, library string) (float64, error) {
	return AccuracyAt(0, net, weights, list, library)
}

// AccuracyAt is Accuracy of an early exit of the net, from 1; 0: of the whole net.
func AccuracyAt(exit int, net train.Net, weights []float32, list []Sample, library string) (float64, error) {
	right, _, err := AnswerAt(exit, net, weights, list, library)
	return RightShare(right), err
}

func bestClass(scores []float32) (best int) {
	for i, s := range scores {
		if s > scores[best] {
			best = i
		}
	}
	return best
}

// probability returns the probability of a class; 0 if there is none of the class. A classifier's scores are
// probabilities (train.Classes).
func probability(scores []float32, class int) float32 {
	if class < 0 || class >= len(scores) {
		return 0
	}
	if p := scores[class]; p >= 0 && p <= 1 {
		return p
	}
	return 0
}

func countRight(right []bool) plan.Answers {
	a := plan.Answers{Labelled: len(right)}
	for _, r := range right {
		if r {
			a.Right++
		}
	}
	return a
}

// RightShare returns the share of right answers; 0 of none.
func RightShare(right []bool) float64 {
	return float64(countRight(right).Right) / float64(max(1, len(right)))
}
