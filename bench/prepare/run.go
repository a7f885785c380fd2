package prepare

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/limits"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sim"
)

// Options are the options of the runs: every combination of Hooks, Loads and Forms.
type Options struct {
	GPUs   int
	Models int // of the 1080 Ti zoo, each with an equal share of the requests
	Hooks  []time.Duration
	Spread float64 // σ of the logarithm of a hook's time, which has the given median; 0: constant, and known to the frontend
	Loads  []float64
	Forms  []string
	Trip   time.Duration // of a message, one way
	Span   time.Duration
	Seed   uint64
}

// DefaultOptions are 8 models on 16 GPUs.
func DefaultOptions() Options {
	return Options{GPUs: 16, Models: 8, Hooks: []time.Duration{2e6, 5e6, 10e6}, Loads: []float64{0.2, 0.4, 0.6, 0.75, 0.85, 0.95}, Forms: Forms,
		Trip: 100 * time.Microsecond, Span: 20 * time.Second, Seed: 1}
}

// Validate returns an error for an option out of range.
func (o *Options) Validate() error {
	zoo := profile.GTX1080Ti()
	switch {
	case o.GPUs < 1 || o.GPUs > 4096:
		return fmt.Errorf("gpus %d: want 1 to 4096", o.GPUs)
	case o.Models < 1 || o.Models > len(zoo):
		return fmt.Errorf("models %d: want 1 to %d", o.Models, len(zoo))
	case !(o.Spread >= 0 && o.Spread <= 2):
		return fmt.Errorf("spread %v: want 0 to 2", o.Spread)
	case o.Trip < 0 || o.Trip > 10*time.Millisecond:
		return fmt.Errorf("trip %v: want 0 to 10ms", o.Trip)
	case o.Span < time.Second || o.Span > time.Hour:
		return fmt.Errorf("span %v: want 1s to 1h", o.Span)
	}

	// The lists.
	for _, h := range o.Hooks {
		if h <= 0 || h > time.Second {
			return fmt.Errorf("hooks %v: want more than 0, at most 1s", h)
		}
	}

	for _, l := range o.Loads {
		if !(l > 0 && l <= 4) {
			return fmt.Errorf("loads %v: want more than 0, at most 4", l)
		}
	}

	for _, f := range o.Forms {
		if !slices.Contains(Forms, f) {
			return fmt.Errorf("forms %q: want some of %v", f, Forms)
		}
	}
	return nil
}

// Row is the result of one form in one setting.
type Row struct {
	GPUs       int     `json:"gpus"`
	HookMS     float64 `json:"hook_ms"` // the median, which each SLO has twice on top
	Spread     float64 `json:"spread"`
	TripUS     float64 `json:"trip_us"`
	Load       float64 `json:"load"`
	Form       string  `json:"form"`
	Requests   int     `json:"requests"`
	BadPct     float64 `json:"bad_pct"`     // requests without an output in time
	RefusedPct float64 `json:"refused_pct"` // rows whose input was read too early, per request
	Batch      float64 `json:"batch"`       // requests in a batch, on average
	Seed       uint64  `json:"seed"`
}

// Run simulates every form in every setting, the forms of a setting by turns, and calls progress with each row.
func Run(ctx context.Context, o Options, progress func(Row)) error {
	if err := o.Validate(); err != nil {
		return err
	}

	// By turns, so that an interrupted run has whole settings.
	for _, hook := range o.Hooks {
		for _, load := range o.Loads {
			for _, form := range o.Forms {
				if err := ctx.Err(); err != nil {
					return err
				}
				row, err := o.simulate(hook, load, form)
				if err != nil {
					return err
				}
				progress(row)
			}
		}
	}
	return nil
}

// simulate runs one form. Arrivals and hooks depend on the seed alone.
func (o *Options) simulate(hook time.Duration, load float64, form string) (Row, error) {
	w, err := o.world(hook, load)
	if err != nil {
		return Row{}, err
	}

	n := len(w.Arrivals)
	s := &server{Downbeat: sim.NewDownbeat(w), w: w, o: run{form: form, trip: sim.Duration(o.Trip), exact: o.Spread == 0},
		hooks: make([]time.Duration, n), learnt: make([]limits.Hooks, len(w.Models)), readyAt: make([]sim.Time, n)}
	s.Downbeat.Refused = s.refuse

	rng := rand.New(rand.NewPCG(o.Seed, 374))
	for r := range s.hooks {
		if took := time.Duration(float64(hook) * math.Exp(o.Spread*rng.NormFloat64())); form != "none" {
			s.hooks[r] = took
		}
	}

	x := w.Run(s)
	bad := 0
	for m := range x.Bad {
		bad += x.Bad[m]
	}

	return Row{GPUs: o.GPUs, HookMS: hook.Seconds() * 1e3, Spread: o.Spread, TripUS: o.Trip.Seconds() * 1e6, Load: load, Form: form, Requests: n,
		BadPct: 100 * float64(bad) / float64(n), RefusedPct: 100 * float64(s.refused) / float64(n), Batch: float64(n-bad) / float64(max(1, x.Batches)), Seed: o.Seed}, nil
}

// world returns a World with models whose SLO has the hook's time twice on top, under a share of the load that full
// batches of half an SLO could carry.
func (o *Options) world(hook time.Duration, load float64) (*sim.World, error) {
	w := &sim.World{GPUs: o.GPUs, Ctrl: sim.Duration(o.Trip)}
	share, cost := arrivals.Even(o.Models), 0.0
	for i, e := range profile.GTX1080Ti()[:o.Models] {
		p, err := e.Profile()
		if err != nil {
			return nil, err
		}
		b := 1
		for b < p.Max() && 2*p.Exec(b+1) <= e.SLO {
			b++
		}
		cost += share[i] * p.Exec(b).Seconds() / float64(b)
		w.Models = append(w.Models, sim.Model{Name: e.Name, Profile: p, SLO: sim.Duration(e.SLO + 2*hook)})
	}

	rate := load * float64(o.GPUs) / cost
	w.Arrivals = arrivals.NewUnit(o.Seed, arrivals.Poisson, share, rate*o.Span.Seconds()*1.01+400).At(rate, o.Span, nil)
	return w, nil
}
