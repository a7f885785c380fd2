package sessions

import (
	"context"
	"fmt"
	"slices"
	"time"

	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/figure"
)

// Load of one worker in figures 4 and 10b.
const (
	offeredFor  = 60 * time.Second
	offeredSkip = 5  // seconds until a worker is full
	offeredStep = 2  // fps
	offeredMost = 40 // fps
)

const usesStated = "which part of a GPU a model uses alone is published only for Jasper and ACAM"

// findApplication returns the application of a name.
func findApplication(name string) *Application {
	all := Applications()
	i := slices.IndexFunc(all, func(a Application) bool { return a.Name == name })
	return &all[i]
}

// drawOffered draws F4: the frames that one worker finishes of those offered, for two applications at two qualities.
func drawOffered(_ context.Context, _ uint64) (*figure.Drawing, error) {
	d := &figure.Drawing{Header: []string{"application", "quality", "offered_fps", "finished_fps", "scatter_fps"}}
	finished := chart.Panel{Title: "frames that one worker finishes", XLabel: "offered, fps", YLabel: "finished, fps"}
	scatter := chart.Panel{Title: "standard deviation over seconds", XLabel: "offered, fps", YLabel: "fps"}

	mostScatter := 0.0
	for _, name := range []string{"traffic", "tracker"} {
		a := findApplication(name)
		for q := range a.Qualities {
			// A worker that is overloaded finishes fewer frames with every further offered one.
			line := name + " " + a.Qualities[q].Name
			most, last := 0.0, 0.0
			for fps := offeredStep; fps <= offeredMost; fps += offeredStep {
				mean, deviation := runShared(a, q, float64(fps), inSpace, offeredFor).meanAndScatter(offeredSkip)
				d.Add(name, a.Qualities[q].Name, fps, mean, deviation)
				finished.Add(line, float64(fps), mean)
				scatter.Add(line, float64(fps), deviation)
				most, last, mostScatter = max(most, mean), mean, max(mostScatter, deviation)
			}
			d.Claims = append(d.Claims, claimsOfOffered(line, most, last)...)
		}
	}

	d.Claims = append(d.Claims, figure.Claim{What: "standard deviation beyond the limit", Published: "grows", Ours: fmt.Sprintf("%.1f fps at most", mostScatter), Verdict: figure.Beside,
		Why: "all frames are slowed alike, and nothing varies in virtual time"})
	d.Panels = []chart.Panel{finished, scatter}
	return d, nil
}

// claimsOfOffered returns F4's claims about one line.
func claimsOfOffered(line string, most, last float64) []figure.Claim {
	published := map[string]string{"traffic high": "16 fps", "traffic low": "24 fps"}[line]
	verdict, why := figure.Beside, "the profile is made from it"
	if published == "" {
		published, verdict, why = "no numbers", figure.NoNumber, ""
	}

	return []figure.Claim{
		{What: line + ": the most that a worker finishes", Published: published, Ours: fmt.Sprintf("%.1f fps", most), Verdict: verdict, Why: why},
		{What: fmt.Sprintf("%s: finished of %d fps", line, offeredMost), Published: "fewer than at the limit", Ours: fmt.Sprintf("%.1f fps", last), Verdict: figure.Judge(last < 0.95*most)},
	}
}

// drawGains draws F10b: the highest rate of a worker that shares its GPU in space, relative to one that runs a
// request at a time, and ours, which runs a batch at a time.
func drawGains(ctx context.Context, seed uint64) (*figure.Drawing, error) {
	d := &figure.Drawing{Header: []string{"application", "quality", "one_at_a_time_fps", "in_space_fps", "gain_pct", "batches_fps", "batches_gain_pct"}}
	panel := chart.Panel{Title: "gain over one request at a time", XLabel: "application and quality, in the order of the table", YLabel: "%"}
	gains, batches := map[string][]float64{}, []float64{}
	all := Applications()

	for i := range all {
		a := &all[i]
		for q := range a.Qualities {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			shared := func(how sharing) float64 {
				return highestRate(func(fps float64) bool { return sustainsShared(a, q, fps, how) })
			}
			one, space := shared(inTime), shared(inSpace)
			ours := highestRate(func(fps float64) bool { return sustainsBatched(a, q, fps, seed) })

			gain, oursGain := 100*(space/one-1), 100*(ours/one-1)
			d.Add(a.Name, a.Qualities[q].Name, one, space, gain, ours, oursGain)
			panel.Add("rim", float64(len(batches)), gain)
			panel.Add("downbeat", float64(len(batches)), oursGain)
			gains[a.Name], batches = append(gains[a.Name], gain), append(batches, oursGain)
		}
	}

	d.Panels = []chart.Panel{panel}
	var every []float64
	for _, g := range gains {
		every = append(every, g...)
	}
	of := func(g []float64) string { return fmt.Sprintf("%.0f %% to %.0f %%", slices.Min(g), slices.Max(g)) }
	d.Claims = []figure.Claim{
		{What: "gain of sharing in space", Published: "8 % to 99 %", Ours: of(every), Verdict: figure.Beside, Why: usesStated},
		{What: "gain of actdet", Published: "36 % to 40 %", Ours: of(gains["actdet"]), Verdict: figure.Beside, Why: usesStated + "; ACAM's 72 % alone would be 39 %"},
		{What: "gain of a batch at a time, which is ours", Published: "–", Ours: of(batches), Verdict: figure.NoNumber},
		{What: "use of a GPU by Jasper and ACAM (F10c)", Published: "63 %, 72 %", Ours: "taken over", Verdict: figure.Beside, Why: "needs a GPU"},
	}
	return d, nil
}

// sustainsShared reports whether a worker that shares its GPU finishes all frames within their latency.
func sustainsShared(a *Application, quality int, fps float64, how sharing) bool {
	ran := runShared(a, quality, fps, how, offeredFor)
	mean, _ := ran.meanAndScatter(offeredSkip)
	return mean >= 0.99*fps && ran.longest <= a.Latency
}

// sustainsBatched reports whether one of our workers can serve one session: a batch has the GPU to itself, and each
// request takes as long as alone.
func sustainsBatched(a *Application, quality int, fps float64, seed uint64) bool {
	alone := *a
	alone.Qualities = []Quality{a.Qualities[quality]}
	alone.Modules = slices.Clone(a.Modules)
	for i := range alone.Modules {
		m := &alone.Modules[i]
		m.Exec = time.Duration(float64(m.Exec) / m.Use)
	}

	w := Workload{Apps: []Application{alone}, Workers: 1, Span: steadyFor, Streams: []Stream{{FPS: fps, Until: steadyFor}}}
	c := central{w: &w, seed: seed}
	if _, err := c.layout(w.Streams); err != nil {
		return false // no split of the latency sustains this rate
	}
	t, _, err := c.run(w.Streams, trialWarm, w.Span)
	return err == nil && t.by[0].good >= t.by[0].frames*99/100
}
