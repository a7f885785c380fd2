package dispatch

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"downbeat.dev/bench/median"
	"downbeat.dev/core/engine"
)

// Limits of a passed run.
const (
	lagLimit     = 2 * time.Millisecond // the generator's
	droppedLimit = 0.001                // share of the requests
	mallocsLimit = 0.001                // per request
)

// Result is one setting's result.
type Result struct {
	Models       int     `json:"models"`
	Variants     int     `json:"variants"` // of each model
	Kinds        int     `json:"kinds"`    // of GPUs
	GPUs         int     `json:"gpus"`
	Cores        int     `json:"cores"`
	RPS          float64 `json:"rps"` // highest rate that passed
	NsPerReq     float64 `json:"ns_per_req"`
	AllocsPerReq float64 `json:"allocs_per_req"`
	GrantP50     int64   `json:"grant_p50_ns"` // at 70 % of RPS
	GrantP99     int64   `json:"grant_p99_ns"`
	DroppedPct   float64 `json:"dropped_pct"`
	LagMax       int64   `json:"lag_max_ns"`
	Pass         bool    `json:"pass"`
	RealTime     bool    `json:"real_time"` // no other process took time slices
	BatchMean    float64 `json:"batch_mean"`
	StepNs       float64 `json:"step_ns_per_req"`      // CPU time per request in virtual time
	FloorNs      float64 `json:"floor_ns_per_req"`     // the same for the moves of memory alone: see floor
	GeneratorNs  float64 `json:"generator_ns_per_req"` // of both, what the generator takes
	FloorRatio   float64 `json:"floor_ratio"`          // of StepNs and FloorNs
	TimerP50     int64   `json:"timer_p50_ns"`         // lateness of a loop's wake-ups
	TimerP99     int64   `json:"timer_p99_ns"`

	Compare []Naive `json:"compare,omitempty"`
}

// Options are the options of a measurement.
type Options struct {
	Each    time.Duration // length of one run
	Tries   int           // largest number of tried rates
	Compare bool          // also measure the two naive dispatchers
	Shared  bool          // no real-time priority: other processes' time slices count
}

// beginRealtime makes the process real-time unless that is not wanted, not allowed, or too short for a run.
func (o *Options) beginRealtime(progress func(string)) (end func(), ok bool) {
	if o.Shared {
		return func() {}, false
	}
	err := fmt.Errorf("runs of %v: at most %v", o.Each, busyMost/2)
	if 2*o.Each <= busyMost { // a run and its warm-up
		if end, err = makeRealtime(); err == nil {
			return end, true
		}
	}
	progress(fmt.Sprintf("other processes' time slices count: %v", err))
	return func() {}, false
}

// checkLimits returns an error if a sample exceeds a limit.
func (s *Sample) checkLimits() error {
	switch {
	case s.Sent == 0:
		return errors.New("nothing was sent")
	case s.LagMax > int64(lagLimit):
		return fmt.Errorf("the generator lagged %v, at most %v", time.Duration(s.LagMax), lagLimit)
	case float64(s.Dropped) > droppedLimit*float64(s.Sent):
		return fmt.Errorf("%.2f %% dropped, at most %.1f %%", 100*float64(s.Dropped)/float64(s.Sent), 100*droppedLimit)
	case float64(s.Mallocs) > mallocsLimit*float64(s.Sent):
		return fmt.Errorf("%.3f allocations per request", float64(s.Mallocs)/float64(s.Sent))
	}
	return nil
}

// Run finds the highest rate that one setting sustains. progress gets a line per tried rate.
func Run(ctx context.Context, set Setting, o Options, progress func(string)) (Result, error) {
	set = set.withDefaults()
	res := Result{Models: set.Models, Variants: set.Variants, Kinds: set.Kinds, GPUs: set.GPUs, Cores: set.Cores}
	if err := set.Check(); err != nil {
		return res, err
	}

	// The virtual cost bounds the search from above: real time adds waiting to the same decisions.
	alone := set
	alone.Cores = 1
	c, err := virtualCosts(alone)
	if err != nil {
		return res, err
	}
	res.StepNs, res.FloorNs, res.GeneratorNs, res.FloorRatio = c.engine, c.floor, c.generator, c.ratio

	end, rt := o.beginRealtime(progress)
	defer end()
	res.RealTime = rt

	r, err := newRig(set, engine.Monotonic{})
	if err != nil {
		return res, err
	}
	defer r.closeRig()

	top := min(0.95*set.fullRate(), 1.3e9/c.engine*float64(set.Cores))
	// The machine has disturbances, so a rate may fail twice before a lower one is tried.
	best, err := highestRate(ctx, top, o.Tries, func(rate float64) error {
		time.Sleep(rest)
		s := r.measureRate(rate, o.Each/2, o.Each, false)
		err := s.checkLimits()
		progress(fmt.Sprintf("%5.1f M/s: %s", rate/1e6, verdictOf(err)))
		if err == nil || res.RPS == 0 {
			res.fillFrom(&s)
		}
		if err == nil {
			res.RPS, res.Pass = rate, true
		}
		return err
	})
	if err != nil {
		return res, err
	}

	// Measure delays at 70 %: at the highest rate they would show the queue, not the scheduler.
	time.Sleep(rest)
	s := r.measureRate(0.7*best, o.Each/2, o.Each, true)
	res.GrantP50, res.GrantP99 = max(0, median.Percentile(s.Delays, 50)), max(0, median.Percentile(s.Delays, 99))

	// The rig's threads poll without pause, so end them before measuring timers.
	r.closeRig()
	runtime.GC()
	if res.TimerP50, res.TimerP99, err = timerError(ctx, 400); err != nil {
		return res, err
	}
	if o.Compare {
		res.Compare, err = compareNaive(ctx, set, o, progress)
	}
	return res, err
}

func verdictOf(err error) string {
	if err == nil {
		return "holds"
	}
	return err.Error()
}

func (r *Result) fillFrom(s *Sample) {
	r.NsPerReq = float64(s.Busy.Nanoseconds()) / float64(s.Sent)
	r.AllocsPerReq = float64(int(1000*float64(s.Mallocs)/float64(s.Sent))) / 1000
	r.DroppedPct = 100 * float64(s.Dropped) / float64(s.Sent)
	r.LagMax = s.LagMax
	r.BatchMean = float64(s.Sent-s.Dropped) / float64(max(1, s.Batches))
}

// Check returns an error if this machine cannot run the setting.
func (s Setting) Check() error {
	switch {
	case s.Models < 1 || s.Models > engine.ModelsMax:
		return fmt.Errorf("%d models, want 1 to %d", s.Models, engine.ModelsMax)
	case s.GPUs < 1 || s.GPUs > engine.GPUsMax:
		return fmt.Errorf("%d gpus, want 1 to %d", s.GPUs, engine.GPUsMax)
	case s.Variants < 0 || s.Variants > variantsMax || s.Kinds < 0 || s.Kinds > min(kindsMax, s.GPUs):
		return fmt.Errorf("%d variants, %d kinds: want at most %d, and %d with a GPU of each", s.Variants, s.Kinds, variantsMax, kindsMax)
	case s.Variants > 1 && s.Cores > 1:
		return fmt.Errorf("%d cores: families are measured on one", s.Cores) // one thread polls the prices, too
	case s.Cores < 1 || s.Cores > runtime.NumCPU() || s.Cores > s.Models:
		return fmt.Errorf("%d cores, want 1 to %d (this machine's) and at most one per model", s.Cores, runtime.NumCPU())
	}
	return nil
}

// highestRate finds the highest rate that holds: down from top in steps until one holds, then up between that one and
// the last that did not.
func highestRate(ctx context.Context, top float64, tries int, hold func(float64) error) (float64, error) {
	best, failed := 0.0, 0.0
	rate := top

	for range tries {
		if err := ctx.Err(); err != nil {
			return best, err
		}

		// Try a failed rate again: another process may have taken the core.
		err := hold(rate)
		if err != nil {
			err = hold(rate)
		}

		if err == nil {
			best = rate
		} else {
			failed = rate
		}

		// Precision: 4 %.
		if best > 0 && (failed == 0 || failed/best < 1.04) {
			break
		}

		if best == 0 {
			rate *= 0.88
		} else {
			rate = (best + failed) / 2
		}
	}

	if best == 0 {
		return rate, nil
	}
	return best, nil
}
