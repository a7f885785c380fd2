package joint

import (
	"context"
	"fmt"
	"time"

	"downbeat.dev/bench/policy"
	"downbeat.dev/core/plan"
)

// Row is the result of a policy on the trace at one load. Its JSON form is one line of `-o json`.
type Row struct {
	Policy            string  `json:"policy"`
	Load              float64 `json:"load"`               // of the peak
	GoodputRPS        float64 `json:"goodput_rps"`        // requests answered in time; those of frames only if the frame was in time
	BadPct            float64 `json:"bad_pct"`            // admitted, but not answered in time
	WorstBadPct       float64 `json:"worst_bad_pct"`      // of the worst family or application
	EffectiveAccuracy float64 `json:"effective_accuracy"` // mean of the answers in time, of services with a choice, relative to their best
	LargestDrop       float64 `json:"largest_drop"`       // 1 minus its lowest value in any second
	Asked             int     `json:"sessions_asked"`
	Sessions          int     `json:"sessions"`       // with 99 % of their frames in time
	Refused           int     `json:"refused"`        // sessions
	FinishPct         float64 `json:"finish_pct"`     // frames in time, of the admitted sessions
	DriftAccuracy     float64 `json:"drift_accuracy"` // of the drifting models, averaged over time; 0: not measured
	SpareUsed         float64 `json:"spare_used"`     // learners' share of the GPUs' time without requests
	LearningGPUs      float64 `json:"learning_gpus"`  // learners' GPU time, in GPUs
	Seed              uint64  `json:"seed"`
}

// Policy is a method of serving the trace.
type Policy struct {
	Name, Summary string
	// learning is the bench/drift policy with which its models learn.
	learning string
	serve    func(ctx context.Context, t *trace) (*outcome, error)
}

// noLearning is the bench/drift policy whose first weights serve for ever.
const noLearning = "none"

// Policies returns all policies, Downbeat first.
func Policies() []Policy {
	return []Policy{
		{"downbeat", "families by price, frames' deadlines, admission by trial, learners in spare time", "ours", serveDownbeat},
		{"symphony", "Symphony's scheduler, the best networks alone, a sub-cluster of each kind", noLearning, serveSymphony},
		{"symphony-light", "the same with the lightest networks alone", noLearning, serveSymphonyLight},
		{"proteus", "an exact program places one network on each GPU", noLearning, serveProteus},
		{"rim", "sessions placed on workers by shares, requests alone, qualities lowered and sessions refused", noLearning, serveRim},
		{"adainf", "jobs of some milliseconds; retraining in what they leave", "adainf", serveAdaInf},
		{"bolted", "all four on one another: Rim lets in, Proteus places, hosts defer, AdaInf trains while they wait", "adainf", serveBolted},
	}
}

// Select returns the policies in a comma-separated list, or all.
func Select(list string) ([]Policy, error) {
	return policy.SelectFrom(Policies(), func(p Policy) string { return p.Name }, list)
}

// Options are the options of a run.
type Options struct {
	Policies []Policy
	Loads    []float64 // of the peak
	Span     time.Duration
	Seed     uint64
	Peak     float64 // multiple of the unit load; 0: search for it
	// LearnShare is the share of GPU time that learners buy from requests, 0 to plan.LearnShareMost.
	LearnShare float64
	Learn      bool   // train the drifting models, which needs ONNX Runtime
	Models     string // the repository
	Library    string // ONNX Runtime; "": as in ort.Library
}

// DefaultOptions are those of the committed results.
func DefaultOptions() Options {
	return Options{Policies: Policies(), Loads: []float64{0.3, 0.5, 0.7, 0.85, 1, 1.15, 1.3, 1.5}, Span: 4 * period, Seed: 8, LearnShare: 0.15, Learn: true, Models: "models"}
}

// Check returns an error for invalid options.
func (o *Options) Check() error {
	for _, l := range o.Loads {
		// The condition is also true for NaN.
		if !(l > 0 && l <= 3) {
			return fmt.Errorf("load %v: want above 0 and at most 3 of the peak", l)
		}
	}
	switch {
	case o.Span < time.Second || o.Span > time.Hour || o.Span%time.Second != 0:
		return fmt.Errorf("span %v: want whole seconds, 1s to 1h", o.Span)
	case o.Learn && (o.Span < 2*period || o.Span%period != 0):
		return fmt.Errorf("span %v: want two or more periods of %v where models learn", o.Span, period)
	case !(o.LearnShare >= 0 && o.LearnShare <= plan.LearnShareMost):
		return fmt.Errorf("learn share %v: want 0 to %v", o.LearnShare, plan.LearnShareMost)
	case !(o.Peak >= 0 && o.Peak <= 10):
		return fmt.Errorf("peak %v: want 0 to 10", o.Peak)
	}
	return nil
}

// Run lets every policy serve the trace at every load. told is called with a line after each, and after each period
// of learning.
func Run(ctx context.Context, o Options, told func(string)) (rows []Row, err error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if o.Peak == 0 {
		if o.Peak, err = FindPeak(ctx, o.Seed); err != nil {
			return nil, err
		}
	}
	told(fmt.Sprintf("the peak is %.4g times the unit load", o.Peak))

	learn := newLearning(&o, told)
	for _, load := range o.Loads {
		t, err := drawTrace(o.Seed, load*o.Peak, o.Span)
		if err != nil {
			return nil, err
		}

		t.bought = o.LearnShare

		// All policies get the same requests.
		for _, p := range o.Policies {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			got, err := p.serve(ctx, t)
			if err != nil {
				return nil, fmt.Errorf("%s at %.2f: %w", p.Name, load, err)
			}

			// Learning comes second: it depends on the time that serving left.
			r := got.toRow(t)
			r.Policy, r.Load = p.Name, load
			if o.Learn {
				if r.DriftAccuracy, err = learn.learntAccuracy(ctx, p.learning, r.LearningGPUs); err != nil {
					return nil, fmt.Errorf("%s at %.2f: %w", p.Name, load, err)
				}
			}
			told(fmt.Sprintf("%s at %.2f: %.0f requests/s in time, %.3f %% bad, %d sessions", p.Name, load, r.GoodputRPS, r.BadPct, r.Sessions))
			rows = append(rows, r)
		}
	}
	return rows, nil
}

func (o *outcome) toRow(t *trace) Row {
	r := Row{GoodputRPS: o.goodRate(t.span), Asked: len(t.streams), Refused: o.refused, SpareUsed: o.spareUsed(), LearningGPUs: o.learning.Seconds() / t.span.Seconds(), Seed: t.seed}
	bad, worst := o.lostShare()
	r.BadPct, r.WorstBadPct = 100*bad, 100*worst
	r.EffectiveAccuracy, r.LargestDrop = o.meanAccuracy()
	kept, finish := o.keptSessions()
	r.Sessions, r.FinishPct = kept, 100*finish
	return r
}

// The search for the peak: length of a trial, and precision.
const (
	peakSpan  = 10 * time.Second
	peakSteps = 9
	peakMost  = 4.0
)

// FindPeak returns the highest multiple of the unit load at which core/sched with only the best networks, without
// learners, keeps 99 % of each family's requests and of each application's frames. Loads are shares of it.
func FindPeak(ctx context.Context, seed uint64) (float64, error) {
	low, high := 0.0, peakMost
	for range peakSteps {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		mid := (low + high) / 2
		t, err := drawTrace(seed, mid, peakSpan)
		if err != nil {
			return 0, err
		}

		// The same scheduler and deadlines as ours, but without a choice of networks.
		o, err := t.serve(t.withoutChoice(t.streams, true))
		if err != nil {
			return 0, err
		}
		if _, worst := o.lostShare(); worst <= 1-keptShare {
			low = mid
		} else {
			high = mid
		}
	}
	return low, nil
}
