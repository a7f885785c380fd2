package drift

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"downbeat.dev/backend/learn"
	"downbeat.dev/core/plan"
)

// Policy is a way to learn beside serving, or not to.
type Policy struct {
	Name string
	open func(s Setting, streams []*stream) (learning, error)
	// bound marks policies that are no rivals, or serve on other ground; `all` leaves them out.
	bound bool
	// untrained policies are not compared with fully retrained weights, whose training takes longest.
	untrained bool
}

// learning is a running policy.
type learning interface {
	// beginPeriod is called at the beginning of a period.
	beginPeriod(period int) error
	// offerSample passes a labelled sample of a model's stream.
	offerSample(model int, one learn.Sample) error
	// endSecond is called at the end of a second, at time now.
	endSecond(now time.Duration) error
	// weights returns a model's serving weights.
	weights(model int) []float32
	// alarms returns the number of a model's detected drifts so far.
	alarms(model int) int
	// finishShare returns the share of the last period's requests that were answered in time.
	finishShare() float64
	close()
}

// Policies returns all policies.
func Policies() []Policy {
	return append([]Policy{
		{Name: "none", open: openNone}, {Name: "ours", open: openOurs}, {Name: "ekya", open: openEkya}, {Name: "ekya-live", open: openEkyaLive},
		{Name: "adainf", open: variantOf(adainf{})}, {Name: "adainf-i", open: variantOf(adainf{even: true})}, {Name: "adainf-u", open: variantOf(adainf{frozen: true})},
		{Name: "adainf-ahead", open: variantOf(adainf{ahead: true})}, {Name: "scrooge", open: openScrooge},
		{Name: "clairvoyant", open: openClairvoyant, bound: true}, {Name: "instant", open: openInstant, bound: true}, {Name: "watch", open: openWatching, bound: true, untrained: true},
	}, variantPolicies()...)
}

// Select returns the policies in a list.
func Select(list string) (chosen []Policy, err error) {
	all := Policies()
	if list == "all" {
		return slices.DeleteFunc(all, func(p Policy) bool { return p.bound }), nil
	}
	for _, name := range strings.Split(list, ",") {
		i := slices.IndexFunc(all, func(p Policy) bool { return p.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("policy %q: want all, or some of %s", name, policyNames(all))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// none serves the first weights for ever.
type none struct {
	streams []*stream
	served  served
}

func openNone(s Setting, streams []*stream) (learning, error) {
	served, err := simulateServing(s, 1)
	return &none{streams, served}, err
}

func (n *none) beginPeriod(int) error               { return nil }
func (n *none) offerSample(int, learn.Sample) error { return nil }
func (n *none) endSecond(time.Duration) error       { return nil }
func (n *none) weights(model int) []float32         { return n.streams[model].start }
func (n *none) alarms(int) int                      { return 0 }
func (n *none) finishShare() float64                { return n.served.finish }
func (n *none) close()                              {}

// ours has a learner for each model. They train in idle GPU time, which they share by the weights that a backend gives
// their spare work, as the scheduler does. That steps delay no batch is tested elsewhere, with the scheduler.
type ours struct {
	setting  Setting
	served   served
	second   time.Duration // GPU time for learning in a second
	learners []*learn.Learner
	answers  []answering   // by model
	left     time.Duration // idle GPU time still available for steps
	given    time.Duration // all of it so far
	used     []float64     // by each learner, by weight, in seconds
	shares   []float64     // weight of each learner's spare work
}

func openOurs(s Setting, streams []*stream) (learning, error) {
	served, err := simulateServing(s, 1)
	if err != nil {
		return nil, err
	}

	// Of all policies only ours has its steps placed by the scheduler.
	second, err := simulateLearning(s)
	if err != nil {
		return nil, err
	}

	// Each model has its own learner; they share only the idle GPU time.
	o := &ours{setting: s, served: served, second: second}
	for _, st := range streams {
		l, err := learn.New(learn.Options{Net: st.net, Weights: st.start, Version: 1, Initial: st.initial, Library: s.Library,
			Seed: s.Seed, Period: Period, StepTime: trainTime(), Batch: batchMax, Mirror: true}, -s.phaseOf(st.number))
		if err != nil {
			o.close()
			return nil, err
		}
		o.learners, o.used = append(o.learners, l), append(o.used, 0)
		o.answers = append(o.answers, answering{net: st.net, library: s.Library})
	}
	return o, nil
}

func (o *ours) beginPeriod(int) error { return nil }

func (o *ours) offerSample(model int, one learn.Sample) error {
	o.answers[model].waiting = append(o.answers[model].waiting, one)
	return nil
}

// offerAnswered passes the second's samples with the answers that the serving weights gave.
func (o *ours) offerAnswered() error {
	for i, l := range o.learners {
		list, err := o.answers[i].answerWaiting(l.Version(), l.Weights())
		if err != nil {
			return err
		}
		for _, one := range list {
			if _, err := l.OfferLabelled(one); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o *ours) endSecond(now time.Duration) error {
	if err := o.offerAnswered(); err != nil {
		return err
	}

	// Time that was not used in the previous second is lost.
	o.left, o.given = min(o.left, 0)+o.second, o.given+o.second

	for _, l := range o.learners {
		_, inputs, err := l.Look(now)
		if err != nil {
			return err
		}
		o.left -= answerTime(inputs)
	}

	o.weigh()

	// The last step may run over; the next second pays for it.
	for o.left > 0 {
		did, err := o.step()
		if err != nil || !did {
			return err
		}
	}
	return nil
}

// weigh gives each learner its weight, as a backend does. The models have the same rate.
func (o *ours) weigh() {
	var values []float64
	for _, l := range o.learners {
		values = append(values, l.Worth(o.setting.rate()/float64(len(o.learners))))
	}
	o.shares = plan.WeighTraining(values)
}

// step lets the learner that has used the least GPU time by its weight do a step.
func (o *ours) step() (did bool, err error) {
	order := make([]int, len(o.learners))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(o.used[a], o.used[b]) })

	for _, i := range order {
		r, err := o.learners[i].Step()
		if err != nil {
			return false, err
		}

		// Labelling and judging cost answers; only training costs a training step.
		cost := answerTime(r.Inputs)
		switch r.Work {
		case learn.None:
			// It does not make up later for the time in which it has no work.
			o.used[i] = slices.Max(o.used)
			continue
		case learn.Training:
			cost = trainTime()
		}
		o.left -= cost
		o.used[i] += cost.Seconds() / o.shares[i]
		return true, nil
	}
	return false, nil
}

func (o *ours) weights(model int) []float32 { return o.learners[model].Weights() }
func (o *ours) alarms(model int) int        { return o.learners[model].Counts().Drifts }
func (o *ours) finishShare() float64        { return o.served.finish }

func (o *ours) close() {
	for i, l := range o.learners {
		l.Close()
		o.answers[i].close()
	}
}

func policyNames(all []Policy) string {
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}
