package plan

import (
	"math"
	"time"
)

// ScaleEvery is the interval of a Scaler's observations, in service and in measurements.
const ScaleEvery = time.Second

// The Scaler's response to bad requests, and its slow descent (UNIFIED S2).
const (
	scaleBadOver = 5 * time.Second  // over which the bad rate is measured
	scaleBadMost = 0.01             // of requests
	scaleBadGPUs = 4                // limit of the GPUs for bad requests, as a multiple of the GPUs for the demand
	scaleKeepFor = 30 * time.Second // for which the largest wanted number of GPUs is kept
	scaleBadFor  = 10 * time.Minute // the longest time for which GPUs are kept that bad requests needed repeatedly
	scaleStart   = 20 * time.Second // of a GPU, if not set
)

// Load is a cluster's load since the previous observation.
type Load struct {
	Demand        float64 // GPUs: Σ rate × GPU time per request, without spare work
	Requests, Bad int     // requests that ended, and those of them not answered in time
	GPUs          int     // that serve
	Ordered       int     // that serve or are starting
}

// Advice is the number of GPUs that a cluster should have, and the reason.
type Advice struct {
	GPUs   int
	Needed int // ⌈demand/u*⌉ at this moment, without forecast and margin
	Reason ScaleReason
}

// ScaleReason is the rule that led to an Advice.
type ScaleReason int

// The rules.
const (
	ScaleHold   ScaleReason = iota // as many as there are, whether or not they have started
	ScaleDemand                    // up: demand will be above u*
	ScaleBad                       // up: too many requests went bad although demand was below u*
	ScaleIdle                      // down: demand stayed below the GPUs' capacity
)

// String returns a reason's name in metrics and explanations.
func (r ScaleReason) String() string {
	return [...]string{"hold", "demand above target", "bad rate", "demand below target"}[r]
}

// Scaler advises on the number of GPUs. Symphony §4.4 reads the bad rate and the idle time: N·r/(1−r) more GPUs, N·f
// fewer. Near the peak its own policy is still idle 3 to 4 % of the time, so N·f gives up GPUs that it needs. Here
// the expected demand decides, against u*. Demand shows load before requests go bad, and also shows the load behind
// spare work and lighter variants, which leave no GPU idle.
//
// The zero value with Targets, Least and Most set is ready for use. Call Observe at least once a second. The state is
// plain data, and may be stored and restored.
type Scaler struct {
	Targets     Targets
	Least, Most int           // bounds of the advice, whatever the load
	Start       time.Duration // from a GPU's order to its first batch; 0: 20 s

	first, last   time.Duration
	begun         bool
	forecast      forecast
	recent        []scaleSample // of the last scaleBadOver
	requests, bad int           // sums of recent
	peaks         []scalePeak   // of the last scaleKeepFor, in falling order
	step          scalePeak     // the last step up for bad requests
	stepFor       time.Duration // for which it is kept
}

type scaleSample struct {
	at            time.Duration
	requests, bad int
}

type scalePeak struct {
	at   time.Duration
	gpus int
}

// NewScaler returns a Scaler that advises at least one GPU, with the measured targets.
func NewScaler() *Scaler { return &Scaler{Targets: DefaultTargets(), Least: 1, Most: gpusMax} }

// Observe takes an observation at now, on any clock that does not go back, and returns advice.
func (s *Scaler) Observe(now time.Duration, l Load) (Advice, error) {
	if err := s.validate(now, l); err != nil {
		return Advice{}, err
	}
	if !s.begun {
		s.first, s.last, s.begun = now, now, true
	}

	start := s.Start
	if start == 0 {
		start = scaleStart
	}
	wanted := s.Targets.GPUsFor(s.forecast.expect(now, now-s.last, start, l.Demand))
	advice := Advice{GPUs: l.Ordered, Needed: s.Targets.GPUsFor(l.Demand)}
	s.rememberLoad(now, l, advice.Needed, wanted)
	s.stepUpForBad(now, l, advice.Needed)

	// Keep the largest recent number: demand that has just fallen may return before a new GPU is ready.
	kept := s.peaks[0].gpus
	isBad := s.step.gpus > kept && now-s.step.at <= s.stepFor
	if isBad {
		kept = s.step.gpus
	}

	// Rates are still being learned after a start and after a change of schedulers.
	switch known := now-s.first >= scaleKeepFor; {
	case kept > l.Ordered && isBad:
		advice.GPUs, advice.Reason = kept, ScaleBad
	case kept > l.Ordered:
		advice.GPUs, advice.Reason = kept, ScaleDemand
	case kept < l.Ordered && known:
		advice.GPUs, advice.Reason = kept, ScaleIdle
	}

	advice.GPUs = min(max(advice.GPUs, s.Least), s.Most)
	return advice, nil
}

// stepUpForBad asks for more GPUs if requests go bad although the demand does not explain it.
func (s *Scaler) stepUpForBad(now time.Duration, l Load, needed int) {
	bad := s.badShare()
	if bad <= scaleBadMost {
		return
	}

	// Relative to the serving GPUs, not the ordered ones: the same step must not be made twice while GPUs start.
	share := min(bad, 0.5) // at most twice the GPUs at once
	gpus := l.GPUs + int(math.Ceil(float64(l.GPUs)*share/(1-share)-1e-9))

	// No profile is wrong by more. Beyond that GPUs do not help, for example when callers allow less time than a
	// batch takes.
	if gpus = min(gpus, scaleBadGPUs*max(1, needed)); gpus <= l.GPUs {
		return
	}

	// If GPUs are needed again soon after they are given up, keep them for twice as long: a profile may be wrong.
	switch ended := now - s.step.at - s.stepFor; {
	case ended <= 0 && gpus < s.step.gpus:
		return
	case ended > 2*s.stepFor || s.stepFor == 0:
		s.stepFor = scaleKeepFor
	case ended > 0:
		s.stepFor = min(2*s.stepFor, scaleBadFor)
	}
	s.step = scalePeak{now, gpus}
}

func (s *Scaler) validate(now time.Duration, l Load) error {
	if err := s.Targets.Validate(); err != nil {
		return err
	}

	// Check the Scaler's settings first, then the observation.
	switch {
	case s.Least < 0 || s.Most < s.Least || s.Most > gpusMax:
		return refuse("least and most GPUs", [2]int{s.Least, s.Most}, "0 ≤ least ≤ most ≤ 2²⁰")
	case s.Start < 0 || s.Start > time.Hour:
		return refuse("start", s.Start, "0 to 1h")
	}

	switch {
	case s.begun && now < s.last:
		return refuse("now", now, "not before the observation before: "+s.last.String())
	case !finite(l.Demand):
		return refuse("demand", l.Demand, "a finite number of GPUs, 0 or more")
	case l.Requests < 0 || l.Bad < 0 || l.Bad > l.Requests:
		return refuse("requests and bad ones", [2]int{l.Requests, l.Bad}, "0 ≤ bad ≤ requests")
	case l.GPUs < 0 || l.Ordered < l.GPUs || l.Ordered > gpusMax:
		return refuse("GPUs and ordered ones", [2]int{l.GPUs, l.Ordered}, "0 ≤ GPUs ≤ ordered ≤ 2²⁰")
	}
	return nil
}

// rememberLoad keeps the requests of scaleBadOver and the largest wanted number of GPUs of scaleKeepFor.
func (s *Scaler) rememberLoad(now time.Duration, l Load, needed, wanted int) {
	// Keep sums over the window, so that a long window costs no more than a short one.
	s.last = now
	x := scaleSample{now, l.Requests, l.Bad}
	if l.GPUs < needed {
		x.bad = 0 // GPUs are missing and ordered, so bad requests carry no news
	}
	s.recent = append(s.recent, x)
	s.requests, s.bad = s.requests+x.requests, s.bad+x.bad
	old := 0
	for ; now-s.recent[old].at >= scaleBadOver; old++ {
		s.requests, s.bad = s.requests-s.recent[old].requests, s.bad-s.recent[old].bad
	}

	s.recent = append(s.recent[:0], s.recent[old:]...)

	// A peak that a later one reaches is no longer needed.
	for len(s.peaks) > 0 && s.peaks[len(s.peaks)-1].gpus <= wanted {
		s.peaks = s.peaks[:len(s.peaks)-1]
	}
	s.peaks = append(s.peaks, scalePeak{now, wanted})

	old = 0
	for ; now-s.peaks[old].at > scaleKeepFor; old++ {
	}
	s.peaks = append(s.peaks[:0], s.peaks[old:]...)
}

// badShare returns the share of the remembered requests that were bad.
func (s *Scaler) badShare() float64 {
	if s.requests == 0 {
		return 0
	}
	return float64(s.bad) / float64(s.requests)
}

// Drain returns n of the GPUs to give back: first those that are already draining, then the highest numbers. Dispatch
// takes idle GPUs from the lowest number, so the highest have the least work left. gpus holds numbers in ascending
// order; draining reports which of them accept no more work.
func Drain(gpus []int32, draining []bool, n int) []int32 {
	var out []int32
	for _, wanted := range []bool{true, false} {
		for i := len(gpus) - 1; i >= 0 && len(out) < n; i-- {
			if draining[i] == wanted {
				out = append(out, gpus[i])
			}
		}
	}
	return out
}
