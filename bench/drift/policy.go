package drift

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"downbeat.dev/backend/learn"
	"downbeat.dev/core/plan"
)

// Policy learns beside serving, or does not.
type Policy struct {
	Name string
	open func(s Setting, streams []*stream) (learning, error)
	// bound is of policies that are no rivals: `all` leaves them out.
	bound bool
	// untrained policies are not compared with fully retrained weights, whose training takes longest.
	untrained bool
}

// learning is a policy at work.
type learning interface {
	// beginPeriod is told that a period begins.
	beginPeriod(period int) error
	// offerSample gives a labelled sample of a model's stream.
	offerSample(model int, one learn.Sample) error
	// endSecond ends a second, at whose end it is now.
	endSecond(now time.Duration) error
	// weights are those that serve a model.
	weights(model int) []float32
	// alarms is how many drifts of a model were detected so far.
	alarms(model int) int
	// finishShare is the share of the last period's requests that were answered in time.
	finishShare() float64
	close()
}

// Policies returns all policies.
func Policies() []Policy {
	return []Policy{
		{Name: "none", open: openNone}, {Name: "ours", open: openOurs}, {Name: "ekya", open: openEkya},
		{Name: "adainf", open: openAdaInf}, {Name: "adainf-i", open: openAdaInfEven}, {Name: "adainf-u", open: openAdaInfFrozen}, {Name: "adainf-ahead", open: openAdaInfAhead},
		{Name: "scrooge", open: openScrooge},
		{Name: "clairvoyant", open: openClairvoyant, bound: true}, {Name: "instant", open: openInstant, bound: true}, {Name: "watch", open: openWatching, bound: true, untrained: true},
	}
}

// Select returns the policies that a list names.
func Select(list string) (chosen []Policy, err error) {
	all := Policies()
	if list == "all" {
		return slices.DeleteFunc(all, func(p Policy) bool { return p.bound }), nil
	}
	for _, name := range strings.Split(list, ",") {
		i := slices.IndexFunc(all, func(p Policy) bool { return p.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("policy %q: want all or of %s", name, policyNames(all))
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

// ours has a learner for each model, which train in GPU time that is idle: the one to which it is worth most at each
// step (plan.ValueTraining). That steps delay no batch is the scheduler's to show, not this simulation's.
type ours struct {
	setting  Setting
	served   served
	learners []*learn.Learner
	left     time.Duration // idle GPU time that steps may still use
}

// driftPrior is how far drifts are assumed to be apart before any has been seen: AdaInf's period.
const driftPrior = Period

func openOurs(s Setting, streams []*stream) (learning, error) {
	served, err := simulateServing(s, 1)
	if err != nil {
		return nil, err
	}

	// Each model has a learner of its own; they share only the idle GPU time.
	o := &ours{setting: s, served: served}
	for _, st := range streams {
		l, err := learn.New(learn.Options{Net: st.recipe.Net(), Weights: st.start, Version: 1, Initial: st.initial, Library: s.Library,
			Seed: s.Seed, Period: Period, StepTime: trainTime(), Batch: batchMax}, 0)
		if err != nil {
			o.close()
			return nil, err
		}
		o.learners = append(o.learners, l)
	}
	return o, nil
}

func (o *ours) beginPeriod(int) error { return nil }

func (o *ours) offerSample(model int, one learn.Sample) error {
	_, err := o.learners[model].OfferLabelled(one)
	return err
}

func (o *ours) endSecond(now time.Duration) error {
	// Idle time that was not used in its second is gone.
	o.left = min(o.left, 0) + time.Duration(o.setting.Spare*o.served.idle*float64(o.setting.GPUs)*float64(tick))

	for _, l := range o.learners {
		_, inputs, err := l.Look(now)
		if err != nil {
			return err
		}
		o.left -= answerTime(inputs)
	}

	// The last step may run over; the next second pays for it.
	for o.left > 0 {
		did, err := o.step(now)
		if err != nil || !did {
			return err
		}
	}
	return nil
}

// step lets the learner to which GPU time is worth most do a step.
func (o *ours) step(now time.Duration) (did bool, err error) {
	var standings []plan.Learner
	for _, l := range o.learners {
		standings = append(standings, l.Worth(o.setting.rate()/2))
	}

	// The worth is computed anew before each step: the last one may have changed the order.
	values := plan.ValueTraining(standings, now, driftPrior)
	plan.ShareTraining(values, 0, 0)

	for i := range values {
		if values[i].Share == 0 {
			continue
		}
		r, err := o.learners[i].Step()
		if err != nil {
			return false, err
		}

		// Labelling and judging answer inputs; only training costs a step.
		switch r.Work {
		case learn.None:
			return false, nil
		case learn.Training:
			o.left -= trainTime()
		default:
			o.left -= answerTime(r.Inputs)
		}
		return true, nil
	}
	return false, nil
}

func (o *ours) weights(model int) []float32 { return o.learners[model].Weights() }
func (o *ours) alarms(model int) int        { return o.learners[model].Counts().Drifts }
func (o *ours) finishShare() float64        { return o.served.finish }

func (o *ours) close() {
	for _, l := range o.learners {
		l.Close()
	}
}

func policyNames(all []Policy) string {
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}
