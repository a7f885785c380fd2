package accuracy

import (
	"context"
	"fmt"

	"downbeat.dev/bench/figure"
)

// drawText lists results from the paper's text (§6.2) beside ours, and whether each setting meets this project's
// targets.
func drawText(ctx context.Context, in *Inputs) (*Drawing, error) {
	d := &Drawing{Header: []string{"trace", "data", "what", "ours", "reference", "holds"}}
	for _, s := range in.Settings {
		c, err := in.compareSetting(ctx, s, baselines+",proteus-wo-ms")
		if err != nil {
			return nil, err
		}
		d.addPublished(c)
		d.addTargets(c)
	}
	return d, nil
}

// rowOf returns a policy's row of the comparison.
func (c *Comparison) rowOf(policy string) Row {
	for _, r := range c.Results {
		if r.Policy == policy {
			return r.Row
		}
	}
	panic("accuracy: policy " + policy + " was not run")
}

// addPublished adds the factors of §6.2: each is another policy's measure divided by Proteus's.
func (d *Drawing) addPublished(c *Comparison) {
	proteus := c.rowOf("proteus")

	for _, x := range []struct{ policy, published string }{{"sommelier", "2.8"}, {"infaas", "4.3"}, {"clipper-ht", "more than 10"}, {"clipper-ha", "more than 10"}} {
		r := c.rowOf(x.policy)
		d.addText(c, "violations of "+x.policy+" over Proteus's", r.ViolationRatio/max(proteus.ViolationRatio, 1e-9), x.published)
	}
	for _, x := range []struct{ policy, published string }{{"clipper-ht", "0.2"}, {"sommelier", "0.16"}, {"infaas", "0.137"}, {"proteus", "0.0485"}} {
		d.addText(c, "largest accuracy drop (1 s) of "+x.policy, c.rowOf(x.policy).LargestDrop1s, x.published)
	}

	ha := c.rowOf("clipper-ha")
	d.addText(c, "throughput of Proteus over Clipper-HA's", proteus.ThroughputRPS/max(ha.ThroughputRPS, 1e-9), "1.6 at the first peak")
	d.addText(c, "throughput of ours over Clipper-HA's", c.rowOf("downbeat").ThroughputRPS/max(ha.ThroughputRPS, 1e-9), "")
}

func (d *Drawing) addText(c *Comparison, what string, ours float64, published string) {
	d.add(c.Setting.Trace.Name, c.Setting.Zoo.Name, what, ours, published, "")

	// Only the paper's statements are claims; the other rows are for the table.
	if published != "" {
		d.Claims = append(d.Claims, figure.Claim{What: what + " (" + c.Setting.Trace.Name + ", " + c.Setting.Zoo.Name + ")", Published: published,
			Ours: figure.Number(ours), Verdict: figure.Beside, Why: "another trace, other profiles"})
	}
}

// This project's targets, relative to the baselines of the same run.
const (
	violationsShare  = 0.5
	violationsEnough = 0.0005
	dropShare        = 0.6
	dropPastBound    = 0.003
	boundDistance    = 0.005
)

// addTargets adds whether each target is met.
func (d *Drawing) addTargets(c *Comparison) {
	ours := c.rowOf("downbeat")
	violations, drop1, drop10, throughput := 1.0, 1.0, 1.0, 0.0
	for _, r := range c.Results {
		if r.Policy == "downbeat" {
			continue
		}
		violations = min(violations, r.ViolationRatio)
		drop1, drop10 = min(drop1, r.LargestDrop1s), min(drop10, r.LargestDrop10s)
		throughput = max(throughput, r.ThroughputRPS)
	}

	// Each target is printed with the number to which it is compared.
	target := func(what string, value float64, reference string, holds bool) {
		d.add(ours.Trace, ours.Data, what, value, reference, holds)
	}
	target("violation ratio", ours.ViolationRatio, fmt.Sprintf("at most half of the least baseline's %s, or 0.0005", figure.Number(violations)),
		ours.ViolationRatio <= max(violationsShare*violations, violationsEnough))
	target("largest drop, 1 s", ours.LargestDrop1s, fmt.Sprintf("at most 0.6 of the least baseline's %s, or 0.003 past the window's bound (here %s)", figure.Number(drop1), figure.Number(ours.PastBound1s)),
		ours.LargestDrop1s <= dropShare*drop1 || ours.PastBound1s <= dropPastBound)
	target("largest drop, 10 s", ours.LargestDrop10s, fmt.Sprintf("at most 0.6 of the least baseline's %s, or 0.003 past the window's bound (here %s)", figure.Number(drop10), figure.Number(ours.PastBound10s)),
		ours.LargestDrop10s <= dropShare*drop10 || ours.PastBound10s <= dropPastBound)
	proteus := c.rowOf("proteus")
	target("largest drop, 1 s, over Proteus's", ours.LargestDrop1s/max(proteus.LargestDrop1s, 1e-9), "at most 0.6", ours.LargestDrop1s <= dropShare*proteus.LargestDrop1s)
	target("effective accuracy below the bound", ours.LPBoundAccuracy-ours.EffectiveAccuracy, "at most 0.005", ours.LPBoundAccuracy-ours.EffectiveAccuracy <= boundDistance)
	target("throughput", ours.ThroughputRPS, fmt.Sprintf("at least the best baseline's %s", figure.Number(throughput)), ours.ThroughputRPS >= throughput)
	target("worst family's drop", ours.WorstFamilyDrop, fmt.Sprintf("at most Proteus's %s", figure.Number(proteus.WorstFamilyDrop)), ours.WorstFamilyDrop <= proteus.WorstFamilyDrop)
}
