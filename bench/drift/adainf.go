package drift

import (
	"slices"
	"time"

	"downbeat.dev/backend/learn"
	"downbeat.dev/backend/train"
)

// adainf trains in the part of each job's SLO that remains before the job must answer. It trains the models affected
// by drift, each in proportion to its loss (AdaInf §3.2, §3.3). Every step's result serves at once, without a
// judgement.
//
// The method cannot run as printed. Decision 0181 lists the repairs, all in its favour where there was a choice.
type adainf struct {
	setting Setting
	streams []*stream
	models  []*adainfModel
	jobs    sessionServed
	asked   bool // a drift has affected some model

	serve  jobServing // runs the jobs; nil: simulateSessions
	even   bool       // variant I: every model is trained, for equal times
	ahead  bool       // the period's samples are available at its beginning, not at its end
	frozen bool       // variant U: the affected models are determined once, after the first period with a drift
	exits  bool       // answers by early exits; without, it is variant E
}

// adainfModel is adainf's state of one model.
type adainfModel struct {
	trainer *train.Trainer
	serving []float32
	changed bool // since weights were last published

	mean    []float32 // mean features of the samples of the latest training
	initial float64   // accuracy of the first weights on the initial samples farthest from their mean
	impact  float64   // the accuracy lost at present; 0: not drifted
	alarms  int
	floor   float64 // A_m: an early exit must be as accurate

	window []learn.Sample // of this period, the samples farthest from the old ones first
	next   int            // index of the next sample for training
	spent  time.Duration  // used part of its share of the training time
}

const (
	adainfRate = ekyaRate
	// S grows by this share of the window until enough consecutive results agree (AdaInf §3.2, T2).
	divergentStep  = 0.03
	divergentMost  = 33
	divergentAgree = 4
)

// variantOf opens a variant of the method.
func variantOf(v adainf) func(Setting, []*stream) (learning, error) {
	return func(s Setting, streams []*stream) (learning, error) { return newAdaInf(s, streams, v) }
}

func newAdaInf(s Setting, streams []*stream, variant adainf) (learning, error) {
	a := &variant
	a.setting, a.streams = s, streams
	if a.serve == nil {
		a.serve = func(s Setting, cost [2]float64) (sessionServed, error) { return simulateSessions(s, cost), nil }
	}
	var err error
	if a.jobs, err = a.serve(s, wholeNetworks); err != nil {
		return nil, err
	}

	for _, st := range streams {
		if a.exits {
			if err := st.attachExits(s.Library); err != nil {
				a.close()
				return nil, err
			}
		}
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
	right, features, err := learn.Answer(st.net, st.start, st.initial, s.Library)
	if err != nil {
		return nil, err
	}
	m := &adainfModel{serving: st.start, mean: meanFeature(features), floor: floorOf(learn.RightShare(right))}

	// Judge the initial samples by the same statistic as later ones, else the farthest samples of any set would look
	// worse.
	order := byDistance(features, m.mean)
	m.initial = rightAmong(right, order[:divergentCount(len(order), divergentAgree)])

	m.trainer, err = train.New(st.net, train.Options{Batch: batchMax, Weights: st.start, Library: s.Library})
	return m, err
}

// beginPeriod finds the models affected by a drift from the samples of the previous period ("new training data,
// generated in the previous time period", §3.2), and orders these samples for training.
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
		right, features, err := learn.Answer(st.net, m.serving, window, a.setting.Library)
		if err != nil {
			return err
		}

		// Variant U goes on with the models that were affected first.
		order := byDistance(features, m.mean)
		if found := m.findImpact(right, order); !a.frozen || !a.asked {
			m.impact = found
		}
		if m.impact > 0 {
			m.alarms++
		}
		if a.exits {
			if err := a.chooseExit(i, window, order); err != nil {
				return err
			}
		}

		// Train on the farthest samples first, and on none twice before all have been used.
		m.window, m.next = m.window[:0], 0
		for _, k := range order {
			m.window = append(m.window, window[k])
		}
		m.mean = meanFeature(features)
	}

	for _, m := range a.models {
		a.asked = a.asked || m.impact > 0
	}
	return a.runJobs()
}

// endSecond trains in the time that the second's jobs left, and serves the trained weights.
func (a *adainf) endSecond(time.Duration) error {
	total := 0.0
	for _, m := range a.models {
		total += a.weightOf(m)
	}
	if total == 0 {
		return nil
	}

	for i, m := range a.models {
		share := a.weightOf(m) / total
		training := a.jobs.training * share
		if a.jobs.apart && share > 0 {
			training = a.jobs.each[i]
		}

		// A step that does not fit into the second's share still begins in it.
		for m.spent += time.Duration(training * float64(tick)); m.spent >= trainTime(); m.spent -= trainTime() {
			if err := m.trainStep(a.streams[i].net); err != nil {
				return err
			}
		}
		if m.changed {
			m.serving, m.changed = slices.Clone(m.trainer.Weights()), false
		}
	}
	return nil
}

// weightOf returns a model's part of the training time.
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
	// The paper takes the number of passes over the samples from a profile; here the time determines it.
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
