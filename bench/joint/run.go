package joint

import (
	"context"
	"fmt"
	"time"

	"downbeat.dev/bench/policy"
	"downbeat.dev/core/plan"
)

// Row is what a policy made of the trace at one load. Its JSON form is one line of `-o json`.
type Row struct {
	Policy            string  `json:"policy"`
	Load              float64 `json:"load"`               // of the peak
	GoodputRPS        float64 `json:"goodput_rps"`        // requests answered in time, those of frames where the frame was in time
	BadPct            float64 `json:"bad_pct"`            // of what was let in, not answered in time
	WorstBadPct       float64 `json:"worst_bad_pct"`      // of the family or application that fared worst
	EffectiveAccuracy float64 `json:"effective_accuracy"` // mean of the answers in time, of services with a choice, over their best
	LargestDrop       float64 `json:"largest_drop"`       // of it below 1, over any second
	Asked             int     `json:"sessions_asked"`
	Sessions          int     `json:"sessions"`       // with 99 % of their frames in time
	Refused           int     `json:"refused"`        // sessions
	FinishPct         float64 `json:"finish_pct"`     // frames in time, of the sessions that were let in
	DriftAccuracy     float64 `json:"drift_accuracy"` // of the models that drift, mean over time; 0: not measured
	SpareUsed         float64 `json:"spare_used"`     // learners' share of the GPUs' time without requests
	LearningGPUs      float64 `json:"learning_gpus"`  // GPUs' worth of time that learners had
	Seed              uint64  `json:"seed"`
}

// Policy is a way to serve the trace.
type Policy struct {
	Name, Summary string
	// learning is the policy of bench/drift that its models learn by.
	learning string
	serve    func(ctx context.Context, t *trace) (*outcome, error)
}

// noLearning is bench/drift's policy of first weights that serve for ever.
const noLearning = "none"

// Policies are all of them, Downbeat first.
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

// Select returns the policies of a list with commas, or all.
func Select(list string) ([]Policy, error) {
	return policy.SelectFrom(Policies(), func(p Policy) string { return p.Name }, list)
}

// Options say what is run.
type Options struct {
	Policies []Policy
	Loads    []float64 // of the peak
	Span     time.Duration
	Seed     uint64
	Peak     float64 // multiple of the unit load; 0: it is searched for
	// LearnShare is the share of GPU time that learners buy from requests, 0 to plan.LearnShareMost.
	LearnShare float64
	Learn      bool   // the models that drift are trained, which takes ONNX Runtime
	Models     string // the repository
	Library    string // ONNX Runtime; "": as ort.Library says
}

// DefaultOptions are the committed results'.
func DefaultOptions() Options {
	return Options{Policies: Policies(), Loads: []float64{0.3, 0.5, 0.7, 0.85, 1, 1.15, 1.3, 1.5}, Span: 4 * period, Seed: 8, LearnShare: 0.15, Learn: true, Models: "models"}
}

// Check says what is wrong with the options.
func (o *Options) Check() error {
	for _, l := range o.Loads {
		// Written so that NaN is refused, too.
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

// Run lets every policy serve the trace at every load; told is given a line after each, and after each period of learning.
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

		// All policies are asked for the very same.
		for _, p := range o.Policies {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			got, err := p.serve(ctx, t)
			if err != nil {
				return nil, fmt.Errorf("%s at %.2f: %w", p.Name, load, err)
			}

			// What the models learn depends on the time that serving left, so that comes second.
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

// The search for the peak: how long each trial is, and how finely it looks.
const (
	peakSpan  = 10 * time.Second
	peakSteps = 9
	peakMost  = 4.0
)

// FindPeak returns the highest multiple of the unit load at which core/sched with the best networks alone, without learners, keeps 99 %
// of each family's requests and of each application's frames: what loads are shares of.
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

		// The same scheduler and deadlines as ours, but with nothing to choose.
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
