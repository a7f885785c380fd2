package drift

import (
	"cmp"
	"math"
	"slices"
	"time"

	"downbeat.dev/backend/learn"
	"downbeat.dev/backend/train"
	"downbeat.dev/core/plan"
)

// adainf trains in what each job's SLO leaves before it answers, the models that a drift has hit, each by how much it has
// lost (AdaInf §3.2, §3.3). What each step has learnt serves at once: nothing judges it.
//
// It cannot run as printed. The repairs, all in its favour where there was a choice, are named in decision 0181.
type adainf struct {
	setting Setting
	streams []*stream
	models  []*adainfModel
	jobs    sessionServed
	asked   bool // a drift has hit some model
	even    bool // its variant I: every model is trained, for the same time
	ahead   bool // it is given a period's samples when the period begins, not when it ends
	frozen  bool // its variant U: what a drift has hit is asked once, after the first period that drifts
}

// adainfModel is one model of it.
type adainfModel struct {
	trainer *train.Trainer
	serving []float32
	changed bool // since weights were last put in force

	mean    []float32 // of the features of the samples that it was trained on last
	initial float64   // accuracy of the first weights on the initial samples that lie farthest from their mean
	impact  float64   // the accuracy that the present has cost; 0: not drifted
	alarms  int

	window []learn.Sample // of this period, those farthest from the old ones first
	next   int            // that is trained on next
	spent  time.Duration  // of its share of the training time
}

const (
	adainfRate = ekyaRate
	// S grows by this share of the window until so many results agree (AdaInf §3.2, T2).
	divergentStep  = 0.03
	divergentMost  = 33
	divergentAgree = 4
)

func openAdaInf(s Setting, streams []*stream) (learning, error) {
	return newAdaInf(s, streams, adainf{})
}

func openAdaInfEven(s Setting, streams []*stream) (learning, error) {
	return newAdaInf(s, streams, adainf{even: true})
}

func openAdaInfAhead(s Setting, streams []*stream) (learning, error) {
	return newAdaInf(s, streams, adainf{ahead: true})
}

func openAdaInfFrozen(s Setting, streams []*stream) (learning, error) {
	return newAdaInf(s, streams, adainf{frozen: true})
}

func newAdaInf(s Setting, streams []*stream, variant adainf) (learning, error) {
	a := &variant
	a.setting, a.streams, a.jobs = s, streams, simulateSessions(s)
	for _, st := range streams {
		m, err := newAdaInfModel(s, st)
		if err != nil {
			a.close()
			return nil, err
		}
		a.models = append(a.models, m)
	}
	return a, nil
}

func newAdaInfModel(s Setting, st *stream) (*adainfModel, error) {
	right, features, err := learn.Answer(st.recipe.Net(), st.start, st.initial, s.Library)
	if err != nil {
		return nil, err
	}
	m := &adainfModel{serving: st.start, mean: meanFeature(features)}

	// The initial samples are judged by the same statistic as later ones, or the farthest of any sample would look lost.
	order := byDistance(features, m.mean)
	m.initial = rightAmong(right, order[:divergentCount(len(order), divergentAgree)])

	m.trainer, err = train.New(st.recipe.Net(), train.Options{Batch: batchMax, Weights: st.start, Library: s.Library})
	return m, err
}

// beginPeriod finds the models that a drift has hit, by the samples of the period before ("new training data, generated in the
// previous time period", §3.2), and orders these for training.
func (a *adainf) beginPeriod(period int) error {
	if !a.ahead {
		period--
	}
	if period < 0 {
		return nil
	}

	for i, st := range a.streams {
		m := a.models[i]
		window, err := st.drawMany(ofPeriods+period*perPeriod, windowSamples, period)
		if err != nil {
			return err
		}
		right, features, err := learn.Answer(st.recipe.Net(), m.serving, window, a.setting.Library)
		if err != nil {
			return err
		}

		// The variant that never asks again goes on with the models that were hit first.
		order := byDistance(features, m.mean)
		if found := m.findImpact(right, order); !a.frozen || !a.asked {
			m.impact = found
		}
		if m.impact > 0 {
			m.alarms++
		}

		// Training takes the farthest first, and no sample twice until all have had their turn.
		m.window, m.next = m.window[:0], 0
		for _, k := range order {
			m.window = append(m.window, window[k])
		}
		m.mean = meanFeature(features)
	}

	for _, m := range a.models {
		a.asked = a.asked || m.impact > 0
	}
	return nil
}

// findImpact returns what accuracy on the farthest samples has fallen by since the first weights answered the farthest
// initial ones, or 0. It is asked of more and more samples until several answers in a row agree.
func (m *adainfModel) findImpact(right []bool, order []int) (impact float64) {
	agree, last := 0, false
	for k := 1; k <= divergentMost; k++ {
		n := divergentCount(len(order), k)
		impact = m.initial - rightAmong(right, order[:n])

		// Less than the 95 % that such a count may vary by is no loss.
		lost := impact > chanceLoss(m.initial, n)
		if lost == last {
			agree++
		} else {
			agree, last = 1, lost
		}
		if agree == divergentAgree {
			break
		}
	}
	if !last {
		return 0
	}
	return impact
}

// chanceLoss is what an accuracy may seem to lose by chance on n samples, at 95 %.
func chanceLoss(accuracy float64, n int) float64 {
	return 1.96 * math.Sqrt(accuracy*(1-accuracy)/float64(n))
}

// divergentCount is how many of n samples are the farthest at the k-th asking.
func divergentCount(n, k int) int { return max(1, int(divergentStep*float64(k)*float64(n))) }

// meanFeature is the mean of some inputs' features.
func meanFeature(f plan.Features) []float32 {
	mean := make([]float32, f.Dim)
	n := float32(len(f.Values) / f.Dim)
	for i, v := range f.Values {
		mean[i%f.Dim] += v / n
	}
	return mean
}

// byDistance orders inputs by the cosine distance of their features from a mean, the farthest first. The uncentred principal
// components of the paper are a rotation, which changes no cosine while all of them are kept.
func byDistance(f plan.Features, mean []float32) []int {
	n := len(f.Values) / f.Dim
	order, distance := make([]int, n), make([]float64, n)
	for i := range n {
		order[i], distance[i] = i, 1-cosine(f.Values[i*f.Dim:(i+1)*f.Dim], mean)
	}
	slices.SortStableFunc(order, func(x, y int) int { return -cmp.Compare(distance[x], distance[y]) })
	return order
}

func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		ab += float64(a[i]) * float64(b[i])
		aa += float64(a[i]) * float64(a[i])
		bb += float64(b[i]) * float64(b[i])
	}
	return ab / math.Max(1e-12, math.Sqrt(aa*bb))
}

// rightAmong is the share of some samples that was answered rightly.
func rightAmong(right []bool, some []int) float64 {
	n := 0
	for _, i := range some {
		if right[i] {
			n++
		}
	}
	return float64(n) / float64(max(1, len(some)))
}

// endSecond trains in the time that the second's jobs had left, and lets what was learnt serve.
func (a *adainf) endSecond(time.Duration) error {
	total := 0.0
	for _, m := range a.models {
		total += a.weightOf(m)
	}
	if total == 0 {
		return nil
	}

	training := a.jobs.training * float64(tick)
	for i, m := range a.models {
		// A step that does not fit into the second's share is begun in it.
		for m.spent += time.Duration(training * a.weightOf(m) / total); m.spent >= trainTime(); m.spent -= trainTime() {
			if err := m.trainStep(a.streams[i].recipe.Net()); err != nil {
				return err
			}
		}
		if m.changed {
			m.serving, m.changed = slices.Clone(m.trainer.Weights()), false
		}
	}
	return nil
}

// weightOf is a model's part of the training time.
func (a *adainf) weightOf(m *adainfModel) float64 {
	switch {
	case len(m.window) == 0:
		return 0
	case a.even:
		return 1
	}
	return m.impact
}

func (m *adainfModel) trainStep(net train.Net) error {
	// How often the samples are gone through the paper takes from a profile; here it is what time allows.
	if m.next+batchMax > len(m.window) {
		m.next = 0
	}
	batch := m.window[m.next : m.next+batchMax]
	m.next += batchMax
	m.changed = true
	return trainOn(m.trainer, net, batch, adainfRate)
}

func (a *adainf) offerSample(int, learn.Sample) error { return nil }
func (a *adainf) weights(model int) []float32         { return a.models[model].serving }
func (a *adainf) alarms(model int) int                { return a.models[model].alarms }
func (a *adainf) finishShare() float64                { return a.jobs.finish }

func (a *adainf) close() {
	for _, m := range a.models {
		m.trainer.Close()
	}
}
