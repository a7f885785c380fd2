package sessions

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/ort"
	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/median"
	"downbeat.dev/bench/worker"
)

// Parameters for repeating Rim's profiling with real models.
const (
	hostModels   = "models" // a repository, from the working directory
	hostSaturate = 3 * time.Second
	hostOffered  = 8 * time.Second
	hostSkip     = 2 // seconds until a worker is full
	hostLoads    = 5 // t10 reports the median
)

// hostRates are offered rates, relative to the rate that the worker sustains.
var hostRates = []float64{0.25, 0.5, 0.75, 0.9, 1, 1.25, 1.5, 2}

// hostApplications are figure 4's two applications at two qualities, with the available models: tracker's second
// model is a classifier of the size of a re-identification model. Fan-outs are the means of models/traffic, and
// bench/sessions' own for tracker.
func hostApplications() (all []worker.Application) {
	for _, quality := range []struct{ name, variant string }{{"high", "l"}, {"low", "s"}} {
		of := func(family string, fanOut int, after ...int) worker.Module {
			return worker.Module{Model: family + "-" + quality.variant, FanOut: fanOut, After: after}
		}
		all = append(all,
			worker.Application{Name: "traffic " + quality.name, Modules: []worker.Module{of("detector", 1), of("vehicle", 3, 0), of("activity", 2, 0)}},
			worker.Application{Name: "tracker " + quality.name, Modules: []worker.Module{of("detector", 1), of("vehicle", 4, 0)}})
	}
	return all
}

// openHost opens a worker with an executor for each of this host's cores.
func openHost(app worker.Application, executors int) (*worker.Worker, error) {
	library, err := ort.Open("")
	if err != nil {
		return nil, err
	}
	return worker.Open(hostModels, app, executors, func() (device.Executor, error) { return library.Executor(), nil })
}

// drawHost draws F4 with real models on executors of this host's processors.
func drawHost(ctx context.Context, _ uint64) (*figure.Drawing, error) {
	d := &figure.Drawing{Header: []string{"application", "executors", "sustained_fps", "offered_fps", "finished_fps", "scatter_fps", "p50_ms"}}
	finished := chart.Panel{Title: "frames that one worker finishes", XLabel: "offered, of what it sustains", YLabel: "finished, of what it sustains"}
	scatter := chart.Panel{Title: "standard deviation over seconds", XLabel: "offered, of what it sustains", YLabel: "of what it sustains"}

	for _, app := range hostApplications() {
		points, err := offerOnHost(ctx, app)
		if err != nil {
			return nil, err
		}
		for _, p := range points {
			d.Add(app.Name, runtime.NumCPU(), p.sustained, p.offered, p.mean, p.deviation, p.p50.Seconds()*1e3)
			finished.Add(app.Name, p.offered/p.sustained, p.mean/p.sustained)
			scatter.Add(app.Name, p.offered/p.sustained, p.deviation/p.sustained)
		}
		d.Claims = append(d.Claims, claimsOfHost(app.Name, points)...)
	}
	d.Panels = []chart.Panel{finished, scatter}
	return d, nil
}

// hostPoint is the result of a worker of this host at one rate.
type hostPoint struct {
	sustained, offered, mean, deviation float64 // fps
	p50                                 time.Duration
}

// offerOnHost offers one application at each rate.
func offerOnHost(ctx context.Context, app worker.Application) (points []hostPoint, err error) {
	w, err := openHost(app, runtime.NumCPU())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()

	for _, of := range hostRates {
		// Other work loads this host, so measure the sustained rate beside each point.
		sustained, err := w.Saturate(ctx, hostSaturate)
		if err != nil {
			return nil, err
		}
		p := hostPoint{sustained: sustained, offered: of * sustained}

		o, err := w.Offer(ctx, p.offered, hostOffered)
		if err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}

		p.mean, p.deviation = overload{perSecond: o.PerSecond}.meanAndScatter(hostSkip)
		p.p50 = median.Of(o.Took)
		points = append(points, p)
	}
	return points, nil
}

// claimsOfHost returns F4's claims about one line.
func claimsOfHost(name string, points []hostPoint) []figure.Claim {
	of := func(p hostPoint) string {
		return fmt.Sprintf("%.0f %% (%.1f of %.1f fps)", 100*p.mean/p.sustained, p.mean, p.sustained)
	}
	within, beyond := points[1], points[len(points)-1]
	limit := points[slices.IndexFunc(points, func(p hostPoint) bool { return p.offered == p.sustained })]
	return []figure.Claim{
		{What: name + ": finished of what is sustained, at half of it", Published: "all that is offered", Ours: of(within), Verdict: figure.Judge(within.mean > 0.95*within.offered), Why: "a host that others load"},
		{What: name + ": the same at twice", Published: "fewer than at the limit", Ours: of(beyond), Verdict: figure.Judge(beyond.mean/beyond.sustained < limit.mean/limit.sustained),
			Why: "what is sustained changes with what else runs on the host"},
	}
}

// drawLoading draws text result 10: the time that a session waits for its models.
func drawLoading(ctx context.Context, _ uint64) (*figure.Drawing, error) {
	d := &figure.Drawing{Header: []string{"application", "loading_ms", "warm_up_ms", "sum_ms"}}

	var loading, sums []float64
	for _, app := range hostApplications() {
		var loads, warmUps []float64

		for range hostLoads {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			w, err := openHost(app, 1)
			if err != nil {
				return nil, err
			}
			loads, warmUps = append(loads, w.Loading.Seconds()*1e3), append(warmUps, w.WarmUp.Seconds()*1e3)
			if err := w.Close(); err != nil {
				return nil, err
			}
		}

		load, warmUp := median.Of(loads), median.Of(warmUps)
		d.Add(app.Name, load, warmUp, load+warmUp)
		loading, sums = append(loading, load), append(sums, load+warmUp)
	}

	between := func(all []float64) string {
		return fmt.Sprintf("%.3f to %.3f s", slices.Min(all)/1e3, slices.Max(all)/1e3)
	}
	const why = "models of this repository on a processor; the paper's are TensorFlow's on a GPU"
	d.Claims = []figure.Claim{
		{What: "loading and warm-up of an application", Published: "1.37 to 4.50 s", Ours: between(sums), Verdict: figure.Beside, Why: why},
		{What: "of it loading", Published: "0.48 to 2.82 s", Ours: between(loading), Verdict: figure.Beside, Why: why},
	}
	return d, nil
}
