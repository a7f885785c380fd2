package scale

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sim"
)

// Options are the options of a run.
type Options struct {
	GPUs   int           // most GPUs of the cluster
	Models int           // of different batching, from the whole 1080 Ti zoo
	Share  float64       // of the GPUs that the rates need on average
	Span   time.Duration // of the load
	Start  time.Duration // from a GPU's order to its first batch
	Gamma  float64       // shape of the gaps between a model's requests: 1 is Poisson, smaller is burstier
	Seed   uint64
}

// DefaultOptions are figure 14's cluster, with half an hour for a day or two.
func DefaultOptions() Options {
	return Options{GPUs: 512, Models: 24, Share: 0.4, Span: 30 * time.Minute, Start: 20 * time.Second, Gamma: 1, Seed: 1}
}

// Validate returns an error for an option out of range.
func (o Options) Validate() error {
	switch {
	case o.GPUs < 1 || o.GPUs > 10_000:
		return fmt.Errorf("gpus %d: want 1 to 10000", o.GPUs)
	case o.Models < 1 || o.Models > len(profile.GTX1080Ti()):
		return fmt.Errorf("models %d: want 1 to %d", o.Models, len(profile.GTX1080Ti()))
	case !(o.Share > 0 && o.Share <= 1):
		return fmt.Errorf("share %v: want more than 0, at most 1", o.Share)
	case o.Span < time.Minute || o.Span > 6*time.Hour:
		return fmt.Errorf("span %v: want 1m to 6h", o.Span)
	case o.Start < 0 || o.Start > time.Hour:
		return fmt.Errorf("start %v: want 0 to 1h", o.Start)
	case !(o.Gamma >= 0.01 && o.Gamma <= 100):
		return fmt.Errorf("gamma %v: want 0.01 to 100", o.Gamma)
	}
	return nil
}

// Row is the result of an autoscaler. GPU-seconds count GPUs that were ordered or ended their last batch.
type Row struct {
	Policy      string  `json:"policy"`
	GPUSeconds  float64 `json:"gpu_seconds"`
	Clairvoyant float64 `json:"clairvoyant"` // GPU-seconds with known rates and GPUs without delay
	Ratio       float64 `json:"ratio"`
	BadPctMax   float64 `json:"bad_pct_max"` // of windows of 10 s with enough serving GPUs
	BadPct      float64 `json:"bad_pct"`     // of all requests
	Windows     int     `json:"windows"`
	Short       int     `json:"windows_short"` // windows with fewer GPUs than the rates needed
	GPUsMax     int     `json:"gpus_max"`
	Changes     int     `json:"changes"` // seconds in which the number of ordered GPUs changed
	GPUs        int     `json:"gpus"`
	Models      int     `json:"models"`
	SpanS       float64 `json:"span_s"`
	StartS      float64 `json:"start_s"`
	Gamma       float64 `json:"gamma"`
	Seed        uint64  `json:"seed"`

	Samples []Sample `json:"-"`
}

// windowSeconds is the window over which a share of bad requests is computed.
const windowSeconds = 10

// Run lets each autoscaler follow the same load and calls progress with each row.
func Run(ctx context.Context, o Options, with []Autoscaler, progress func(Row)) (*Workload, []Row, error) {
	if err := o.Validate(); err != nil {
		return nil, nil, err
	}
	w, err := NewWorkload(Spread(profile.GTX1080Ti(), o.Models), o.GPUs, o.Share, o.Span, o.Seed)
	if err != nil {
		return nil, nil, err
	}

	world := &sim.World{GPUs: o.GPUs, Arrivals: w.Arrivals(arrivals.Gaps{Shape: o.Gamma}, o.Seed)}
	for m, e := range w.Models {
		world.Models = append(world.Models, sim.Model{Name: e.Name, Profile: w.profiles[m], SLO: sim.Duration(e.SLO)})
	}

	needed := w.Clairvoyant(plan.DefaultTargets(), 0)
	var rows []Row
	for _, a := range with {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}

		start := o.Start
		if a.Instant {
			start = 0
		}

		// Every policy begins with the GPUs that the first second needs, so that none pays for its own start.
		c := newScalingCluster(world, a.New(w, o), start, min(o.GPUs, max(1, needed[0])))
		world.Ended = c.countEnded
		world.Run(c)

		row := Row{Policy: a.Name, GPUs: o.GPUs, Models: o.Models, SpanS: o.Span.Seconds(), StartS: o.Start.Seconds(), Gamma: o.Gamma, Seed: o.Seed, Samples: c.samples}
		row.sum(w, needed)
		rows = append(rows, row)
		progress(row)
	}
	return w, rows, nil
}

// sum sums the samples. needed is the rates' need by second.
func (r *Row) sum(w *Workload, needed []int) {
	for _, n := range w.Clairvoyant(plan.DefaultTargets(), time.Second) {
		r.Clairvoyant += float64(n)
	}

	requests, bad := 0, 0
	samples := r.Samples[:min(len(r.Samples), len(needed))] // the last requests end after the load
	var window Sample
	enough := true
	for s, x := range samples {
		r.GPUSeconds += float64(x.Held)
		r.GPUsMax = max(r.GPUsMax, x.Serving)
		if s > 0 && x.Ordered != samples[s-1].Ordered {
			r.Changes++
		}
		requests, bad = requests+x.Requests, bad+x.Bad

		window.Requests, window.Bad = window.Requests+x.Requests, window.Bad+x.Bad
		enough = enough && x.Serving >= needed[s]
		if (s+1)%windowSeconds != 0 {
			continue
		}

		r.Windows++

		// A window with too few GPUs for the rates does not judge the scheduler: count it as short, not as bad.
		if !enough {
			r.Short++
		} else {
			r.BadPctMax = max(r.BadPctMax, 100*float64(window.Bad)/float64(max(1, window.Requests)))
		}
		window, enough = Sample{}, true
	}

	r.BadPct = 100 * float64(bad) / float64(max(1, requests))
	r.Ratio = r.GPUSeconds / r.Clairvoyant
}

// WriteTable prints rows for people.
func WriteTable(w io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "policy\tGPU-seconds\tof clairvoyant\tworst window, bad %\tall, bad %\twindows short of GPUs\tmost GPUs\tchanges\t")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%.0f\t%.3f\t%.2f\t%.3f\t%d of %d\t%d\t%d\t\n", r.Policy, r.GPUSeconds, r.Ratio, r.BadPctMax, r.BadPct, r.Short, r.Windows, r.GPUsMax, r.Changes)
	}
	return t.Flush()
}
