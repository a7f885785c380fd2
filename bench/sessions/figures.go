package sessions

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/figure"
)

// Figure is a figure of Rim's paper.
type Figure struct {
	ID, Title string
	Where     string // where it is measured; empty: virtual time
	Draw      func(ctx context.Context, seed uint64) (*figure.Drawing, error)
}

const onHost = "this host's processors"

// Figures are all available figures.
var Figures = []Figure{
	{"f4", "frames that one worker finishes, over those that it is offered", "", drawOffered},
	{"f4host", "the same with real models (f4 in the paper)", onHost, drawHost},
	{"f6", "finish rate and GPU use, three maximal workloads", "", drawMaximal},
	{"f7", "finish rate of each session of W-1", "", drawSessions},
	{"f8", "mean batch", "", drawBatches},
	{"f9", "sessions until one is refused, held, and taken away again", "", drawFilled},
	{"f10a", "the same by placement rule", "", drawRules},
	{"f10b", "sharing a GPU in space over one request at a time", "", drawGains},
	{"t8", "29 sessions at once (text result 8)", "", drawTwentyNine},
	{"t9", "frames in time by application where latencies are tight (text result 9)", "", drawTight},
	{"t10", "loading and warm-up of an application's models (text result 10)", onHost, drawLoading},
	{"t14", "Nexus with twice the processors for face, and with looser latencies (text result 14)", "", drawNexus},
	{"t16", "use of the GPUs by as many sessions as Rim takes (text result 16)", "", drawUse},
}

// FindFigure returns the figure with an ID.
func FindFigure(id string) (Figure, error) {
	return figure.Find(Figures, func(f Figure) string { return f.ID }, id)
}

// Write makes a figure and writes it to a directory.
func (f Figure) Write(ctx context.Context, seed uint64, dir string) error {
	d, err := f.Draw(ctx, seed)
	if err != nil {
		return fmt.Errorf("figure %s: %w", f.ID, err)
	}
	return d.Write(dir, f.ID)
}

const stated = "profiles are stated, not published"

var header = []string{"workload", "policy", "workers", "sessions", "refused", "finish_pct", "finish_pct_min", "late_pct", "utilization", "accuracy", "batch_mean"}

// comparePolicies runs policies over workloads and adds a record for each.
func comparePolicies(ctx context.Context, d *figure.Drawing, workloads, policies string, seed uint64) (map[string]Result, error) {
	d.Header = header
	chosen, err := Select(policies)
	if err != nil {
		return nil, err
	}

	all := map[string]Result{}

	for _, name := range strings.Split(workloads, ",") {
		w, err := FindWorkload(name, seed)
		if err != nil {
			return nil, err
		}

		for _, p := range chosen {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			r, err := p.Run(w, seed)
			if err != nil {
				return nil, err
			}
			all[w.Name+" "+p.Name] = r
			d.Add(r.Workload, r.Policy, r.Workers, r.Sessions, r.Refused, r.FinishPct, r.FinishPctMin, r.LatePct, r.Utilization, r.Accuracy, r.BatchMean)
		}
	}
	return all, nil
}

func drawMaximal(ctx context.Context, seed uint64) (*figure.Drawing, error) {
	d := &figure.Drawing{}
	all, err := comparePolicies(ctx, d, "W-1,W-2,W-3", "downbeat-high,rim,nexus,clipper", seed)
	if err != nil {
		return nil, err
	}

	for _, w := range []string{"w-1", "w-2", "w-3"} {
		r, ours := all[w+" rim"], all[w+" downbeat-high"]
		d.Claims = append(d.Claims,
			figure.Claim{What: w + ": Rim's finish rate", Published: "100 %", Ours: percent(r.FinishPct), Verdict: figure.Judge(r.FinishPct == 100)},
			figure.Claim{What: w + ": Downbeat's finish rate", Published: "–", Ours: percent(ours.FinishPct), Verdict: figure.NoNumber},
			figure.Claim{What: w + ": Rim's utilization", Published: "32.1 to 37.9 %", Ours: percent(100 * r.Utilization), Verdict: figure.Beside, Why: stated + "; Rim's capacity is a frame rate, which processors bound as well"},
			figure.Claim{What: w + ": the others' finish rate", Published: "59.6 to 89.4 %", Ours: percent(all[w+" nexus"].FinishPct) + ", " + percent(all[w+" clipper"].FinishPct), Verdict: figure.Beside,
				Why: "the rivals have their best form here: they know the true rates, and their processors never fall behind"})
	}
	return d, nil
}

func percent(x float64) string { return fmt.Sprintf("%.2f %%", x) }

func drawSessions(ctx context.Context, seed uint64) (*figure.Drawing, error) {
	d := &figure.Drawing{Header: []string{"policy", "application", "sessions", "finish_pct"}}
	rest := &figure.Drawing{}
	all, err := comparePolicies(ctx, rest, "W-1", "downbeat-high,rim,nexus,clipper", seed)
	if err != nil {
		return nil, err
	}

	for _, p := range []string{"downbeat-high", "rim", "nexus", "clipper"} {
		for _, by := range all["w-1 "+p].ByApp {
			d.Add(p, by.App, by.Sessions, by.FinishPct)
		}
	}
	d.Claims = []figure.Claim{{What: "Nexus: face sessions", Published: "all below 50 %", Ours: "see the table", Verdict: figure.Beside, Why: stated + "; the paper's loss comes from processors, which are not modelled as shared"}}
	return d, nil
}

func drawBatches(ctx context.Context, seed uint64) (*figure.Drawing, error) {
	d := &figure.Drawing{}
	all, err := comparePolicies(ctx, d, "W-1,W-2,W-3", "downbeat-high,nexus,clipper", seed)
	if err != nil {
		return nil, err
	}
	for _, w := range []string{"w-1", "w-2", "w-3"} {
		n, ours := all[w+" nexus"].BatchMean, all[w+" downbeat-high"].BatchMean
		d.Claims = append(d.Claims, figure.Claim{What: w + ": Nexus's mean batch", Published: "less than a handful", Ours: fmt.Sprintf("%.2f; Downbeat %.2f", n, ours), Verdict: figure.Judge(n < 5)})
	}
	return d, nil
}

// seedsOfFilled is the number of draws of F9's script in a figure: the paper has one.
const seedsOfFilled = 5

func drawFilled(ctx context.Context, seed uint64) (*figure.Drawing, error) {
	d := &figure.Drawing{}

	panel := chart.Panel{Title: "sessions admitted", XLabel: "draw", YLabel: "sessions", XMin: 1}
	sum, accuracy := map[string]float64{}, map[string]float64{}
	names := []string{"downbeat", "rim", "rim-high", "rim-low"}
	broken, fewest := 100.0, 1000
	for i := range uint64(seedsOfFilled) {
		all, err := comparePolicies(ctx, d, "f9", strings.Join(names, ","), seed+i)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			r := all["f9 "+name]
			sum[name] += float64(r.Sessions) / seedsOfFilled
			accuracy[name] += r.Accuracy / seedsOfFilled
			panel.Add(name, float64(i+1), float64(r.Sessions))
		}

		// The worst session of any draw decides about the promise.
		broken = min(broken, all["f9 downbeat"].FinishPctMin)
		fewest = min(fewest, all["f9 downbeat"].Sessions)
	}

	d.Panels = []chart.Panel{panel}
	ratio := func(a, b string) string { return fmt.Sprintf("%.1f / %.1f", sum[a], sum[b]) }
	d.Claims = []figure.Claim{
		{What: "sessions, Rim / Rim-high", Published: "34 / 19 (+78.9 %)", Ours: ratio("rim", "rim-high"), Verdict: figure.Judge(sum["rim"] > sum["rim-high"]), Why: stated},
		{What: "sessions, Downbeat / Rim", Published: "target 51 / 34", Ours: ratio("downbeat", "rim"), Verdict: figure.Judge(sum["downbeat"] >= 1.5*sum["rim"])},
		{What: "sessions of the draw on which Downbeat has fewest", Published: "target 51", Ours: fmt.Sprint(fewest), Verdict: figure.Judge(fewest >= 51)},
		{What: "mean accuracy, Downbeat / Rim", Published: "at least Rim's", Ours: fmt.Sprintf("%.3f / %.3f", accuracy["downbeat"], accuracy["rim"]), Verdict: figure.Judge(accuracy["downbeat"] >= accuracy["rim"])},
		{What: "Downbeat's worst session over the whole run", Published: "target 99 %", Ours: percent(broken), Verdict: figure.Judge(broken >= 99)},
	}
	return d, nil
}

func drawRules(ctx context.Context, seed uint64) (*figure.Drawing, error) {
	d := &figure.Drawing{}
	rules := []string{"rim", "rim-rr", "rim-memory", "rim-utilization", "rim-ncdrop", "rim-nc", "rim-temporal", "nexus", "clipper"}
	all, err := comparePolicies(ctx, d, "f9", strings.Join(rules, ","), seed)
	if err != nil {
		return nil, err
	}

	others := []float64{all["f9 rim-rr"].FinishPct, all["f9 rim-memory"].FinishPct, all["f9 rim-utilization"].FinishPct}
	d.Claims = []figure.Claim{
		{What: "Rim", Published: "near 100 %", Ours: percent(all["f9 rim"].FinishPct), Verdict: figure.Judge(all["f9 rim"].FinishPct > 99)},
		{What: "best of the other rules", Published: "lower", Ours: percent(slices.Max(others)), Verdict: figure.Judge(slices.Max(others) < all["f9 rim"].FinishPct), Why: "the rules place the sessions that Rim lets in, whole"},
	}
	return d, nil
}

// drawTwentyNine draws text result 8: without placement across workers, Rim refuses some of 29 sessions or loses
// frames.
func drawTwentyNine(ctx context.Context, seed uint64) (*figure.Drawing, error) {
	d := &figure.Drawing{}
	sessions, least := map[string]float64{}, 100.0
	for i := range uint64(seedsOfFilled) {
		all, err := comparePolicies(ctx, d, "t8", "downbeat,rim,rim-ncdrop,rim-nc", seed+i)
		if err != nil {
			return nil, err
		}
		for _, name := range []string{"downbeat", "rim", "rim-ncdrop"} {
			sessions[name] += float64(all["t8 "+name].Sessions) / seedsOfFilled
		}
		least = min(least, all["t8 downbeat"].FinishPctMin)
	}

	d.Claims = []figure.Claim{
		{What: "sessions, Rim / without placement across workers", Published: "29 / 24", Ours: fmt.Sprintf("%.1f / %.1f", sessions["rim"], sessions["rim-ncdrop"]), Verdict: figure.Judge(sessions["rim"] >= sessions["rim-ncdrop"]), Why: stated},
		{What: "sessions, Downbeat", Published: "target 29 of 29", Ours: fmt.Sprintf("%.1f", sessions["downbeat"]), Verdict: figure.Judge(sessions["downbeat"] == textSessions)},
		{What: "Downbeat's worst session", Published: "target 99.14 %, Rim's mean", Ours: percent(least), Verdict: figure.Judge(least >= 99.14)},
	}
	return d, nil
}
