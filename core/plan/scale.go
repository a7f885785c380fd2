package plan

import (
	"math"
	"time"
)

// The hysteresis of the Scaler (UNIFIED S2).
const (
	scaleUpAfter   = 2 * time.Second  // of demand above u*
	scaleBadOver   = 5 * time.Second  // over which the bad rate is taken
	scaleBadMost   = 0.01             // of requests
	scaleDownAfter = 60 * time.Second // of demand well below u*
	scaleDownBelow = 0.1              // how far below u*
	scaleKeep      = 0.9              // of the most GPUs that were needed lately
	scaleKeepFor   = 10 * time.Minute // how long lately is
)

// Load is what a cluster did since the observation before.
type Load struct {
	Demand        float64 // GPUs: Σ rate × GPU time per request, spare work left out
	Requests, Bad int     // requests that ended; those of them that were not answered in time
	GPUs          int     // that serve
	Ordered       int     // that serve or are being started
}

// Advice is how many GPUs a cluster should have, and why.
type Advice struct {
	GPUs   int
	Needed int // ⌈demand/u*⌉ at this moment
	Reason ScaleReason
}

// ScaleReason says which rule led to an Advice.
type ScaleReason int

// The rules.
const (
	ScaleHold   ScaleReason = iota // as many as there are, started or not
	ScaleDemand                    // up: demand stayed above u*
	ScaleBad                       // up: too many requests went bad
	ScaleIdle                      // down: demand stayed well below u*
)

// String names a reason as metrics and explanations do.
func (r ScaleReason) String() string {
	return [...]string{"hold", "demand above target", "bad rate", "demand below target"}[r]
}

// Scaler advises on the number of GPUs. Symphony §4.4 reads the bad rate and idle time: N·r/(1−r) more,
// N·f fewer. Near the peak its own policy is still idle 3 to 4 %, so N·f gives away GPUs that it needs;
// here demand against u* decides, the bad rate is a lower bound of a step up, and steps down wait.
// Demand sees load before requests go bad, and sees through spare work and lighter variants, which leave
// no GPU idle.
//
// The zero value with Targets, Least and Most set is ready. Observe is called at least once a
// second; the state is plain data, and may be stored and restored.
type Scaler struct {
	Targets     Targets
	Least, Most int // GPUs to advise, whatever the load

	last            time.Duration
	begun           bool
	above, below    time.Duration // since when demand is above or well below u*
	isAbove, isLow  bool
	recent          []scaleSample // of the last scaleBadOver
	peaks           []scalePeak   // of the last scaleKeepFor, by falling height
	requests, spoil int           // sums of recent
}

type scaleSample struct {
	at            time.Duration
	requests, bad int
}

type scalePeak struct {
	at     time.Duration
	needed int
}

// Observe takes in what happened up to now, a moment on any clock that does not go back, and advises.
func (s *Scaler) Observe(now time.Duration, l Load) (Advice, error) {
	if err := s.validate(now, l); err != nil {
		return Advice{}, err
	}

	needed := s.Targets.GPUsFor(l.Demand)
	s.remember(now, l, needed)

	// A cluster without GPUs counts as one that is fully used.
	target := s.Targets.At(max(1, l.GPUs))
	used := l.Demand / float64(max(1, l.GPUs))
	s.isAbove, s.above = since(now, used > target, s.isAbove, s.above)
	s.isLow, s.below = since(now, used < target-scaleDownBelow, s.isLow, s.below)

	// Bad requests are the loudest sign, then demand; going down waits for both to be quiet.
	advice := Advice{GPUs: l.Ordered, Needed: needed}
	switch bad := s.badShare(); {
	case bad > scaleBadMost:
		// From GPUs that serve, not from those ordered: a step is not made twice while GPUs start.
		share := min(bad, 0.5) // at most twice the GPUs at once
		step := int(math.Ceil(float64(l.GPUs)*share/(1-share) - 1e-9))
		s.raise(&advice, max(needed, l.GPUs+step), ScaleBad)
	case s.isAbove && now-s.above >= scaleUpAfter:
		s.raise(&advice, needed, ScaleDemand)
	case s.isLow && now-s.below >= scaleDownAfter:
		if kept := max(needed, int(math.Ceil(scaleKeep*float64(s.peaks[0].needed)))); kept < l.Ordered {
			advice.GPUs, advice.Reason = kept, ScaleIdle
		}
	}

	advice.GPUs = min(max(advice.GPUs, s.Least), s.Most)
	return advice, nil
}

func (s *Scaler) raise(a *Advice, gpus int, reason ScaleReason) {
	if gpus > a.GPUs {
		a.GPUs, a.Reason = gpus, reason
	}
}

func (s *Scaler) validate(now time.Duration, l Load) error {
	if err := s.Targets.Validate(); err != nil {
		return err
	}
	switch {
	case s.Least < 0 || s.Most < s.Least || s.Most > gpusMax:
		return refuse("least and most GPUs", [2]int{s.Least, s.Most}, "0 ≤ least ≤ most ≤ 2²⁰")
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

// remember keeps the requests of some seconds and the peaks of some minutes.
func (s *Scaler) remember(now time.Duration, l Load, needed int) {
	// Sums over the window are kept, so that a long window costs no more than a short one.
	s.last, s.begun = now, true
	s.recent = append(s.recent, scaleSample{now, l.Requests, l.Bad})
	s.requests, s.spoil = s.requests+l.Requests, s.spoil+l.Bad
	old := 0
	for ; now-s.recent[old].at >= scaleBadOver; old++ {
		s.requests, s.spoil = s.requests-s.recent[old].requests, s.spoil-s.recent[old].bad
	}

	s.recent = append(s.recent[:0], s.recent[old:]...)

	// A peak that a later one reaches is not asked for any more.
	for len(s.peaks) > 0 && s.peaks[len(s.peaks)-1].needed <= needed {
		s.peaks = s.peaks[:len(s.peaks)-1]
	}
	s.peaks = append(s.peaks, scalePeak{now, needed})

	old = 0
	for ; now-s.peaks[old].at > scaleKeepFor; old++ {
	}
	s.peaks = append(s.peaks[:0], s.peaks[old:]...)
}

func (s *Scaler) badShare() float64 {
	if s.requests == 0 {
		return 0
	}
	return float64(s.spoil) / float64(s.requests)
}

// since keeps the moment at which a condition became true.
func since(now time.Duration, is, was bool, at time.Duration) (bool, time.Duration) {
	if !is || was {
		return is, at
	}
	return true, now
}

// Drain returns n of the GPUs to give back: those that are draining already, then the highest numbers.
// Dispatch takes idle GPUs from the lowest number, so the highest have least to finish. gpus holds
// numbers in ascending order and draining says which of them take no more work.
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
