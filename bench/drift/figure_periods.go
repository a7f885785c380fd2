package drift

import (
	"context"
	"fmt"
	"math"
	"slices"

	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/figure"
)

// Figures over periods. One run gives the data of all of them: `bench drift -o periods`.

const oursName = "ours"

// selectRows returns the rows of policies in the file's order. If there are none, the error says how to make them.
func selectRows(in *Inputs, policies ...string) (rows []PeriodRow, err error) {
	for _, r := range in.Periods {
		if slices.Contains(policies, r.Policy) {
			rows = append(rows, r)
		}
	}

	if len(rows) == 0 {
		return nil, fmt.Errorf("no rows of %v: make them with `downbeat bench drift -o periods`", policies)
	}
	return rows, nil
}

// meanOf returns the mean of a number over the rows of a policy on this many GPUs for which pass returns true; NaN if
// there are none.
func meanOf(rows []PeriodRow, policy string, gpus int, pass func(PeriodRow) bool, number func(PeriodRow) float64) float64 {
	sum, n := 0.0, 0
	for _, r := range rows {
		if r.Policy == policy && r.GPUs == gpus && (pass == nil || pass(r)) {
			sum, n = sum+number(r), n+1
		}
	}
	return sum / float64(n)
}

func accuracyOf(r PeriodRow) float64 { return r.Accuracy }
func seenOf(r PeriodRow) float64     { return r.SeenNew }
func goodOf(r PeriodRow) float64     { return r.AsRetrained }
func beginsNew(r PeriodRow) bool     { return r.Drift }

// mostGPUs returns the largest cluster of the rows.
func mostGPUs(rows []PeriodRow) (most int) {
	for _, r := range rows {
		most = max(most, r.GPUs)
	}
	return most
}

// policiesIn returns the policies of rows, in their order.
func policiesIn(rows []PeriodRow) (names []string) {
	for _, r := range rows {
		if !slices.Contains(names, r.Policy) {
			names = append(names, r.Policy)
		}
	}
	return names
}

// addOverTime adds a number of each policy, averaged over the models, to a panel by period.
func addOverTime(p *chart.Panel, rows []PeriodRow, gpus int, number func(PeriodRow) float64) {
	last := 0
	for _, r := range rows {
		last = max(last, r.Period)
	}

	for _, name := range policiesIn(rows) {
		for period := range last + 1 {
			mean := meanOf(rows, name, gpus, func(r PeriodRow) bool { return r.Period == period }, number)
			// Policies may have run for different numbers of periods.
			if !math.IsNaN(mean) {
				p.Add(name, float64(period), mean)
			}
		}
	}
}

// percent formats shares, some of which may be missing.
func percent(x float64) string {
	if math.IsNaN(x) {
		return "not run"
	}
	return fmt.Sprintf("%.1f %%", 100*x)
}

var periodHeader = []string{"policy", "gpus", "seed", "period", "model", "level", "drift", "accuracy", "first", "last", "initial", "seen_new", "as_retrained", "finish", "divergence"}

func addPeriods(d *figure.Drawing, rows []PeriodRow) {
	d.Header = periodHeader
	for _, r := range rows {
		d.Add(r.Policy, r.GPUs, r.Seed, r.Period, r.Model, r.Level, r.Drift, r.Accuracy, r.First, r.Last, r.Initial, r.SeenNew, r.AsRetrained, r.Finish, r.Divergence)
	}
}

// drawRetraining draws figure 4.
func drawRetraining(_ context.Context, in *Inputs) (*figure.Drawing, error) {
	rows, err := selectRows(in, oursName, "none", "ekya")
	if err != nil {
		return nil, err
	}

	d, gpus := &figure.Drawing{}, mostGPUs(rows)
	addPeriods(d, rows)
	accuracy := chart.Panel{Title: "accuracy", XLabel: "period", YLabel: "share right", YMin: 0.8}
	good := chart.Panel{Title: "answers by weights as good as retrained ones", XLabel: "period", YLabel: "share of the answers"}
	addOverTime(&accuracy, rows, gpus, accuracyOf)

	// Weights as good as retrained ones matter only in changed periods.
	addOverTime(&good, slices.DeleteFunc(slices.Clone(rows), func(r PeriodRow) bool { return !r.Drift }), gpus, goodOf)
	d.Panels = []chart.Panel{accuracy, good}

	// The upper end of the paper's range is the largest gain of a period.
	most := 0.0
	for _, r := range rows {
		if r.Policy == oursName && r.GPUs == gpus {
			most = max(most, r.Accuracy-r.Initial)
		}
	}

	where := fmt.Sprintf(", %d GPUs", gpus)
	d.Claims = []figure.Claim{
		{What: "accuracy with retraining over without, by period" + where, Published: "0 % to 27 %", Ours: "up to " + percent(most), Verdict: figure.Beside, Why: "our first weights lose less: figure 5"},
		{What: "requests of changed periods that new weights answer" + where, Published: "Ekya 53 % to 60 %",
			Ours: "Ekya " + percent(meanOf(rows, "ekya", gpus, beginsNew, seenOf)) + ", ours " + percent(meanOf(rows, oursName, gpus, beginsNew, seenOf)), Verdict: figure.Beside,
			Why: "weights that are no worse than new ones are kept, and then there is nothing new to see"},
		{What: "requests of changed periods answered by weights within 1.5 points of fully retrained ones" + where, Published: "-",
			Ours: "Ekya " + percent(meanOf(rows, "ekya", gpus, beginsNew, goodOf)) + ", ours " + percent(meanOf(rows, oursName, gpus, beginsNew, goodOf)) +
				", no learning " + percent(meanOf(rows, "none", gpus, beginsNew, goodOf)), Verdict: figure.NoNumber},
	}
	return d, nil
}

// drawLosses draws figure 5.
func drawLosses(_ context.Context, in *Inputs) (*figure.Drawing, error) {
	rows, err := selectRows(in, "none")
	if err != nil {
		return nil, err
	}

	d := &figure.Drawing{Header: []string{"model", "period", "level", "lost"}}
	panel := chart.Panel{Title: "accuracy lost since the first period", XLabel: "period", YLabel: "share of the answers"}
	most, first := map[string]float64{}, map[string]float64{}

	// Count losses from the first period, the day on which the weights were trained.
	for _, r := range rows {
		if _, ok := first[r.Model]; !ok {
			first[r.Model] = r.Initial
		}
		lost := first[r.Model] - r.Initial
		most[r.Model] = max(most[r.Model], lost)
		panel.Add(r.Model, float64(r.Period), max(0, lost))
		d.Add(r.Model, r.Period, r.Level, lost)
	}

	d.Panels = []chart.Panel{panel}
	d.Claims = []figure.Claim{
		{What: "accuracy that the vehicle model loses", Published: "0 % to 15 %", Ours: "up to " + percent(most["vehicle"]), Verdict: figure.Beside, Why: "the schedule of light is made to lose about as much"},
		{What: "accuracy that the person model loses", Published: "0 % to 9 %", Ours: "activity: up to " + percent(most["activity"]), Verdict: figure.Beside, Why: "the schedule of light is made to lose about as much"},
	}
	return d, nil
}

// drawDivergence draws figure 6.
func drawDivergence(_ context.Context, in *Inputs) (*figure.Drawing, error) {
	rows, err := selectRows(in, "none")
	if err != nil {
		return nil, err
	}

	d := &figure.Drawing{Header: []string{"model", "period", "drift", "divergence"}}
	panel := chart.Panel{Title: "Jensen-Shannon divergence of the labels", XLabel: "period", YLabel: "bits"}
	most := 0.0

	// One panel shows both models' labels.
	for _, r := range rows {
		most = max(most, r.Divergence)
		panel.Add(r.Model, float64(r.Period), r.Divergence)
		d.Add(r.Model, r.Period, r.Drift, r.Divergence)
	}

	// Only the schedule paper moves the frequencies of the classes.
	why := "our streams drift in light, rain and noise, not in what is on the street: labels differ by chance"
	if rows[0].Schedule == "paper" {
		why = "at each drift the schedule draws it from the paper's range"
	}

	d.Panels = []chart.Panel{panel}
	d.Claims = []figure.Claim{{What: "divergence of labels between periods", Published: "vehicle 0.1 % to 26 % above person", Ours: "at most " + percent(most), Verdict: figure.Beside,
		Why: why}}
	return d, nil
}

// drawAccuracy draws figure 18, drawFinish figure 19.
func drawAccuracy(_ context.Context, in *Inputs) (*figure.Drawing, error) {
	d, _, gpus, err := drawSystems(in, "accuracy", accuracyOf, 0.8)
	if err != nil {
		return nil, err
	}

	// Name policies that were not run. The clairvoyant one is no system, so it appears only in the claims.
	mean := func(policy string, gpus int) float64 { return meanOf(in.Periods, policy, gpus, nil, accuracyOf) }
	overOn := func(few int, one, other string) string {
		if x := mean(one, few) - mean(other, gpus); !math.IsNaN(x) {
			return fmt.Sprintf("%.2f points", 100*x)
		}
		return "not run"
	}
	over := func(one, other string) string { return overOn(gpus, one, other) }

	const why = "all learning wins at most some points on this schedule: the models of the tree lose less to the dark than the paper's"
	where := fmt.Sprintf(", %d GPUs", gpus)

	// The paper's comparisons come first, then this project's.
	d.Claims = []figure.Claim{
		{What: "AdaInf over Ekya" + where, Published: "11 to 14 points", Ours: over("adainf", "ekya") + "; ours over Ekya " + over(oursName, "ekya"), Verdict: figure.Differs, Why: why},
		{What: "AdaInf over Scrooge" + where, Published: "19 to 21 points", Ours: over("adainf", "scrooge") + "; ours over Scrooge " + over(oursName, "scrooge"), Verdict: figure.Differs, Why: why},
		{What: "ours over AdaInf" + where, Published: "-", Ours: over(oursName, "adainf"), Verdict: figure.NoNumber},
		{What: "the best weights of each period from its first second on, over AdaInf" + where, Published: "-", Ours: over("clairvoyant", "adainf") + "; over ours " + over("clairvoyant", oursName), Verdict: figure.NoNumber,
			Why: "what learning without delay would win: 0322"},
		{What: "ours on a quarter of the GPUs over Ekya" + where, Published: "AdaInf on 4 GPUs as Ekya on 16", Ours: overOn(gpus/4, oursName, "ekya") + "; over an Ekya that learns from the window before " + overOn(gpus/4, oursName, "ekya-live"), Verdict: figure.Beside,
			Why: "Ekya is given its window's samples when the window begins, which a running system has not"},
		{What: "ours over no learning" + where, Published: "-", Ours: over(oursName, "none"), Verdict: figure.NoNumber},
	}
	return d, nil
}

func drawFinish(_ context.Context, in *Inputs) (*figure.Drawing, error) {
	d, rows, gpus, err := drawSystems(in, "finish", finishOf, 0)
	if err != nil {
		return nil, err
	}

	// The claim is about the largest cluster.
	mean := func(policy string) string {
		return percent(meanOf(rows, policy, gpus, nil, finishOf))
	}

	d.Claims = []figure.Claim{{What: fmt.Sprintf("finish rate, %d GPUs", gpus), Published: "AdaInf 94 % to 98 %, Ekya 50 to 54 points less", Ours: fmt.Sprintf("ours %s, AdaInf %s, Ekya %s", mean(oursName), mean("adainf"), mean("ekya")),
		Verdict: figure.Beside, Why: "the paper states no rates: at 0.7 of what the GPUs can answer all finish, and Ekya takes no more GPUs than are idle"}}
	return d, nil
}

// drawSystems draws a number of all systems over time, and its mean over the GPUs.
func drawSystems(in *Inputs, name string, number func(PeriodRow) float64, least float64) (*figure.Drawing, []PeriodRow, int, error) {
	rows, err := selectRows(in, oursName, "adainf", "ekya", "scrooge", "none")
	if err != nil {
		return nil, nil, 0, err
	}

	d, gpus := &figure.Drawing{}, mostGPUs(rows)
	addPeriods(d, rows)
	time := chart.Panel{Title: fmt.Sprintf("%s over time, %d GPUs", name, gpus), XLabel: "period", YLabel: name, YMin: least}
	addOverTime(&time, rows, gpus, number)

	size := chart.Panel{Title: name + " over GPUs", XLabel: "GPUs", YLabel: name, YMin: least}
	for _, policy := range policiesIn(rows) {
		for n := 1; n <= gpus; n++ {
			// Not every number of GPUs was run.
			if mean := meanOf(rows, policy, n, nil, number); !math.IsNaN(mean) {
				size.Add(policy, float64(n), mean)
			}
		}
	}

	d.Panels = []chart.Panel{time, size}
	return d, rows, gpus, nil
}
