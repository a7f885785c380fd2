package symphony

import (
	"context"
	"fmt"
	"slices"
	"time"

	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/goodput"
	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
)

var burstiness = []float64{0.1, 0.2, 0.3, 0.5, 0.7, 1}

// table3 returns the 7,560 cells of figure 4 (d): models of one profile.
func table3() []goodput.Setting {
	var out []goodput.Setting
	for _, name := range []string{"DenseNet121", "InceptionV3", "ResNet50V2", "VGG16", "Xception", "BERT"} {
		for _, models := range []int{8, 16, 24, 32, 48, 64} {
			for _, perModel := range []float64{1, 1.5, 2, 2.5, 3, 3.5, 4} {
				for _, slo := range []int{20, 25, 30, 40, 50} {
					for _, k := range burstiness {
						out = append(out, alike(fmt.Sprintf("%s-%d-%g-%dms-gamma%g", name, models, perModel, slo, k),
							entry(name, time.Duration(slo)*time.Millisecond), models, int(float64(models)*perModel), arrivals.Gaps{Shape: k}))
					}
				}
			}
		}
	}
	return out
}

// sampleCells selects n different cells, spread over all dimensions.
func sampleCells(cells []goodput.Setting, n int) []goodput.Setting {
	const step = 3491 // a prime: it shares no factor with the number of cells
	var out []goodput.Setting
	for i := range n {
		out = append(out, cells[i*step%len(cells)])
	}
	return out
}

// mixedZoo is figure 4 (a): the 35 models of table 5, with two GPUs each.
func mixedZoo(gamma float64) goodput.Setting {
	zoo := profile.GTX1080Ti()
	return goodput.Setting{Name: fmt.Sprintf("mixed-gamma%g", gamma), Models: zoo, Share: arrivals.Even(len(zoo)), GPUs: 2 * len(zoo), Gaps: arrivals.Gaps{Shape: gamma}}
}

// drawDeferral is figure 4. The paper does not state the numbers of models and GPUs in (a) to (c); here they are 16
// models with two GPUs each.
func drawDeferral(ctx context.Context, in *Inputs) (*figure.Drawing, error) {
	var settings []goodput.Setting
	for _, k := range burstiness {
		settings = append(settings, mixedZoo(k))
		for _, name := range []string{"DenseNet121", "BERT"} {
			for _, slo := range []int{30, 50} {
				settings = append(settings, alike(fmt.Sprintf("%s-%dms-gamma%g", name, slo, k), entry(name, time.Duration(slo)*time.Millisecond), 16, 32, arrivals.Gaps{Shape: k}))
			}
		}
	}

	// All three deferring policies get the same arrivals as eager dispatch.
	policies, err := goodput.Policies("downbeat,symphony-printed,symphony-windowed,eager")
	if err != nil {
		return nil, err
	}

	named, err := in.comparePolicies(ctx, settings, policies)
	if err != nil {
		return nil, err
	}

	// Run each cell once and briefly: there are many, and their distribution counts.
	short := *in
	short.Goodput.Seeds, short.Goodput.Span = 1, min(in.Goodput.Span, 10*time.Second)
	cells, err := short.comparePolicies(ctx, sampleCells(table3(), in.Cells), policies)
	if err != nil {
		return nil, err
	}

	d := &figure.Drawing{Header: goodputHeader}
	addGoodput(d, named)
	addGoodput(d, cells)
	d.Panels = append(ratiosOverGamma(named), ratioCurve(cells))
	d.Claims = append(deferralClaims(named), cellClaims(cells)...)
	return d, nil
}

var deferring = []string{"downbeat", "symphony-printed", "symphony-windowed"}

// ratiosOverGamma draws figure 4 (a) to (c): goodput relative to eager dispatch, over burstiness.
func ratiosOverGamma(rows []goodput.Row) []chart.Panel {
	var out []chart.Panel
	for _, group := range []string{"mixed", "DenseNet121-30ms", "DenseNet121-50ms", "BERT-30ms", "BERT-50ms"} {
		p := chart.Panel{Title: group, XLabel: "shape of the Gamma gaps", YLabel: "goodput over eager's", YMin: 0.7, YMax: 1.6}
		for _, k := range burstiness {
			setting := fmt.Sprintf("%s-gamma%g", group, k)
			for _, name := range deferring {
				p.Add(name, k, over(findRow(rows, setting, name), findRow(rows, setting, "eager")))
			}
		}
		out = append(out, p)
	}
	return out
}

// cellRatios returns the sorted ratios of a policy's goodput to eager's, over the cells that eager can serve.
func cellRatios(rows []goodput.Row, policy string) []float64 {
	var out []float64
	for _, r := range rows {
		if eager := findRow(rows, r.Setting, "eager"); r.Policy == policy && eager.Goodput > 0 {
			out = append(out, over(r, eager))
		}
	}
	slices.Sort(out)
	return out
}

// ratioCurve draws figure 4 (d).
func ratioCurve(rows []goodput.Row) chart.Panel {
	p := chart.Panel{Title: "cells of table 3, sorted", XLabel: "share of the cells", YLabel: "goodput over eager's", YMin: 0.5, YMax: 2.5, XMax: 1}
	for _, name := range deferring {
		ratios := cellRatios(rows, name)
		// Sorted ratios over their rank are the distribution of the gain over all cells.
		for i, x := range ratios {
			p.Add(name, float64(i+1)/float64(len(ratios)), min(x, 2.5))
		}
	}
	return p
}

// rangeOver returns the smallest and the largest ratio to eager over burstiness, as gains.
func rangeOver(rows []goodput.Row, group, policy string) (least, most float64) {
	least = 1e9
	for _, k := range burstiness {
		setting := fmt.Sprintf("%s-gamma%g", group, k)
		x := over(findRow(rows, setting, policy), findRow(rows, setting, "eager"))
		least, most = min(least, x), max(most, x)
	}
	return least, most
}

// otherEager is the reason why deferring gains less here than in the paper.
const otherEager = "eager dispatch drops heads here whose deadline cannot be met, and fits each batch to its head; the paper does not say what its eager dispatch does"

func deferralClaims(rows []goodput.Row) []figure.Claim {
	var out []figure.Claim
	for _, c := range []struct{ group, published, why string }{
		{"mixed", "+34 % to +89 %", "at Γ 0.1 the printed policy is behind eager dispatch; the paper does not say where its eager policy lost more"},
		{"DenseNet121-30ms", "+14 % to +152 %", otherEager}, {"DenseNet121-50ms", "less prominent", ""},
		{"BERT-30ms", "similar", ""}, {"BERT-50ms", "similar", ""},
	} {
		// Compare the printed policy, too: the paper's claim is about it.
		least, most := rangeOver(rows, c.group, "downbeat")
		printedLeast, printedMost := rangeOver(rows, c.group, "symphony-printed")
		claim := figure.Claim{What: "over eager dispatch, " + c.group, Published: c.published,
			Ours: fmt.Sprintf("%+.0f %% to %+.0f %%; the printed policy %+.0f %% to %+.0f %%", 100*(least-1), 100*(most-1), 100*(printedLeast-1), 100*(printedMost-1))}

		switch c.published {
		case "similar":
			claim.Verdict = figure.Judge(least > 0.95)
		case "less prominent":
			_, tight := rangeOver(rows, "DenseNet121-30ms", "downbeat")
			claim.Verdict = figure.Judge(most < tight)
		default:
			claim.Verdict, claim.Why = figure.Judge(least >= 1.14 && most >= 1.5), c.why
		}
		out = append(out, claim)
	}
	return out
}

// cellClaims are the paper's claims about all cells of figure 4 (d).
func cellClaims(rows []goodput.Row) []figure.Claim {
	share := func(ratios []float64, least float64) float64 {
		n := 0
		for _, x := range ratios {
			if x >= least {
				n++
			}
		}
		return float64(n) / float64(max(1, len(ratios)))
	}

	ours, printed := cellRatios(rows, "downbeat"), cellRatios(rows, "symphony-printed")
	both := func(least float64) string {
		return fmt.Sprintf("%.1f %% of %d; the printed policy %.1f %%", 100*share(ours, least), len(ours), 100*share(printed, least))
	}

	// The ratios are sorted.
	most := 0.0
	if len(ours) > 0 {
		most = ours[len(ours)-1]
	}
	return []figure.Claim{
		{What: "cells in which deferring has at least 0.95 of eager", Published: "nearly all", Ours: both(0.95), Verdict: figure.Judge(share(ours, 0.95) > 0.97), Why: otherEager},
		{What: "cells with 50 % more", Published: "more than 10 %", Ours: both(1.5), Verdict: figure.Judge(share(ours, 1.5) > 0.1), Why: otherEager},
		{What: "the most", Published: "more than 2×", Ours: fmt.Sprintf("%.2f×", most), Verdict: figure.Judge(most > 2)},
	}
}
