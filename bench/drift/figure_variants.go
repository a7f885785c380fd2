package drift

import (
	"context"
	"fmt"
	"math"

	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/figure"
)

// variant is the method without one of its parts (figure 22).
type variant struct {
	name, what     string
	policy, whole  string // the variant, and the whole method on the same ground
	accuracy, rate string // published differences of accuracy and of finish rate
	rateFalls      bool   // without the part fewer requests finish; else as many
}

var variants = []variant{
	{name: "I", what: "the time divided evenly", policy: "adainf-i", whole: "adainf", accuracy: "−18 points", rate: "0"},
	{name: "U", what: "impacts found once", policy: "adainf-u", whole: "adainf", accuracy: "−17 points", rate: "0"},
	{name: "S", what: "the space divided evenly", policy: "adainf-s", whole: "adainf-apart", accuracy: "−7 points", rate: "−37 points", rateFalls: true},
	{name: "E", what: "no early exits", policy: "adainf", whole: "adainf-exits", accuracy: "−8 points", rate: "−3 points", rateFalls: true},
	{name: "M1", what: "requests one at a time", policy: "adainf-m1", whole: "adainf-memory", accuracy: "−4 points", rate: "−5 points", rateFalls: true},
	{name: "M2", what: "no order of eviction", policy: "adainf-m2", whole: "adainf-memory", accuracy: "−5 points", rate: "−7 points", rateFalls: true},
}

// The largest differences that count as none: what the tests of 40 periods tell apart, and half a point of the requests.
const (
	accuracySame = 0.002
	finishSame   = 0.005
)

func finishOf(r PeriodRow) float64 { return r.Finish }

// drawVariants draws figure 22: each variant beside the whole method.
func drawVariants(_ context.Context, in *Inputs) (*figure.Drawing, error) {
	rows, err := selectRows(in, "adainf")
	if err != nil {
		return nil, err
	}

	gpus := mostGPUs(rows)
	d := &figure.Drawing{Header: []string{"variant", "gpus", "periods", "accuracy", "whole", "finish", "whole_finish"}}
	accuracy := chart.Panel{Title: "accuracy, less the whole method's", XLabel: "period", YLabel: "points", YMin: -1, YMax: 1}
	finish := chart.Panel{Title: "finish rate, less the whole method's", XLabel: "period", YLabel: "points", YMin: -1, YMax: 1}

	for _, v := range variants {
		// Compare the periods that both were run for.
		last := min(lastPeriod(in.Periods, v.policy, gpus), lastPeriod(in.Periods, v.whole, gpus))
		mean := func(policy string, number func(PeriodRow) float64) float64 {
			return meanOf(in.Periods, policy, gpus, func(r PeriodRow) bool { return r.Period <= last }, number)
		}

		one, whole := mean(v.policy, accuracyOf), mean(v.whole, accuracyOf)
		if math.IsNaN(one) || math.IsNaN(whole) {
			continue // it was not run
		}
		rate, wholeRate := mean(v.policy, finishOf), mean(v.whole, finishOf)

		addDifference(&accuracy, in.Periods, v, gpus, accuracyOf)
		addDifference(&finish, in.Periods, v, gpus, finishOf)

		d.Add(v.name, gpus, last+1, one, whole, rate, wholeRate)
		d.Claims = append(d.Claims, claimAccuracy(v, one-whole), claimFinish(v, rate-wholeRate))
	}
	d.Panels = []chart.Panel{accuracy, finish}
	return d, nil
}

// lastPeriod returns the last period of a policy's rows; -1 if there are none.
func lastPeriod(rows []PeriodRow, policy string, gpus int) (last int) {
	last = -1
	for _, r := range rows {
		if r.Policy == policy && r.GPUs == gpus {
			last = max(last, r.Period)
		}
	}
	return last
}

// addDifference adds, for each period, a number of a variant less the whole method's, in points.
func addDifference(p *chart.Panel, rows []PeriodRow, v variant, gpus int, number func(PeriodRow) float64) {
	for period := 0; ; period++ {
		now := func(r PeriodRow) bool { return r.Period == period }
		lost := 100 * (meanOf(rows, v.policy, gpus, now, number) - meanOf(rows, v.whole, gpus, now, number))
		if math.IsNaN(lost) {
			return
		}

		p.Add(v.name+": "+v.what, float64(period), lost)
		p.YMin = min(p.YMin, lost)
	}
}

func claimAccuracy(v variant, gain float64) figure.Claim {
	why := whyAccuracy[v.name]
	if math.Abs(gain) < accuracySame {
		why = "no difference that the tests tell from chance, 0.2 points"
	}

	return figure.Claim{What: v.name + ": " + v.what + ", accuracy", Published: v.accuracy, Ours: fmt.Sprintf("%+.2f points", 100*gain), Verdict: figure.Judge(gain <= -accuracySame), Why: why}
}

func claimFinish(v variant, gain float64) figure.Claim {
	as := math.Abs(gain) < finishSame
	return figure.Claim{What: v.name + ": " + v.what + ", finish rate", Published: v.rate, Ours: fmt.Sprintf("%+.2f points", 100*gain), Verdict: figure.Judge(as != v.rateFalls && (as || gain < 0)), Why: whyFinish[v.name]}
}

// whyAccuracy and whyFinish say why a variant's result is another one than published.
var (
	whyAccuracy = map[string]string{
		"I": "it also trains for the five of 19 drifts that are not found",
		"E": "an exit is less accurate than its network by more than training in the time that it leaves wins back",
	}
	whyFinish = map[string]string{
		"E":  "at 0.7 of what the GPUs can answer all requests are in time without exits, too",
		"M2": "by age less is copied here: the order by type and SLO lets go what the same step wants again (figure 23)",
	}
)
