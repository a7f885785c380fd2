package family

import (
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/profile"
	"downbeat.dev/core/sim"
)

// Zoo is a set of families and the kinds of devices on which their variants were measured.
type Zoo struct {
	Name     string
	Kinds    []string
	Families []Family
}

// Family is a set of variants that answer the same requests.
type Family struct {
	Name     string
	Variants []Variant
}

// Variant is one accuracy level of a family with its measured latencies.
type Variant struct {
	Name     string
	Accuracy float64 // 0 to 1, relative to the family's best
	// Measured holds, by kind, the latency of every measured batch size; nil: not measured on this kind.
	Measured []map[int]time.Duration
}

// Profile returns ℓ(1)…ℓ(n) of a variant on a kind, where n is the largest measured size up to sizeMax; nil if none
// was measured. A batch of b is padded to the fastest measured size ≥ b, so that ℓ never decreases although
// measurements do.
func (v *Variant) Profile(kind, sizeMax int) (*profile.Profile, error) {
	measured := v.Measured[kind]
	last := 0
	for size := range measured {
		if size <= sizeMax {
			last = max(last, size)
		}
	}
	if last == 0 {
		return nil, nil
	}

	table := make([]time.Duration, last)
	best := measured[last]
	// From the largest size down, best is the smallest latency of any size that holds b requests.
	for b := last; b >= 1; b-- {
		if d, ok := measured[b]; ok {
			best = min(best, d)
		}
		table[b-1] = best
	}
	return profile.New(table)
}

// Rule defines the SLO at scale 1.
type Rule string

// The rules. The paper's text and its public simulator disagree.
const (
	// RuleArtifact is the public simulator's table of SLOs, 35 to 300 ms by family. Families that the table lacks
	// follow RuleCPU.
	RuleArtifact Rule = "artifact"
	// RuleCPU is the paper's text (§6.1.2): the latency of the fastest variant on the slowest kind, the first one, at
	// batch 1.
	RuleCPU Rule = "cpu"
	// RuleTrace is half of the SLO in the trace's lines (300 ms in the public ones), so that scale 2 gives that SLO.
	RuleTrace Rule = "trace"
)

// Rules are all rules.
var Rules = []Rule{RuleArtifact, RuleCPU, RuleTrace}

// artifactSLO is the public simulator's SLO at scale 1, in ms.
var artifactSLO = map[string]int{
	"bert": 75, "densenet": 100, "efficientnet": 75, "gpt2": 300, "mobilenet": 35,
	"resnest": 100, "resnet": 75, "t5": 300, "yolo": 50,
}

// SLO returns a family's SLO at a scale. traceSLO is the SLO in the trace's lines.
func (z *Zoo) SLO(f int, rule Rule, scale float64, traceSLO time.Duration) (time.Duration, error) {
	base := time.Duration(0)
	switch rule {
	case RuleTrace:
		base = traceSLO / 2
	case RuleArtifact:
		base = time.Duration(artifactSLO[z.Families[f].Name]) * time.Millisecond
	}

	// A family without a table entry follows the paper's text.
	if base == 0 {
		base = z.fastestLatency(f)
	}
	if base == 0 {
		return 0, fmt.Errorf("family %s: no variant was measured on kind %s at batch 1, want one to derive the SLO from", z.Families[f].Name, z.Kinds[0])
	}
	return time.Duration(float64(base) * scale), nil
}

// fastestLatency returns the smallest latency at batch 1 on the first kind; 0 if none was measured.
func (z *Zoo) fastestLatency(f int) time.Duration {
	best := time.Duration(0)
	for _, v := range z.Families[f].Variants {
		if d, ok := v.Measured[0][1]; ok && (best == 0 || d < best) {
			best = d
		}
	}
	return best
}

// Devices is a number of devices of one of the zoo's kinds.
type Devices struct {
	Kind  int
	Count int
}

// Select returns the zoo with only the named families, in the order of the names.
func (z *Zoo) Select(names []string) (*Zoo, error) {
	out := &Zoo{Name: z.Name, Kinds: z.Kinds}
	for _, name := range names {
		i := slices.IndexFunc(z.Families, func(f Family) bool { return f.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("family %q of the trace has no variants in the profiles", name)
		}
		out.Families = append(out.Families, z.Families[i])
	}
	return out, nil
}

// Models returns the zoo's families as models of a simulated world, with SLOs by rule, scale and the trace's own;
// batches hold at most sizeMax requests. Kinds are renumbered to their position in kinds.
func (z *Zoo) Models(kinds []int, rule Rule, scale float64, traceSLO []time.Duration, sizeMax int) ([]sim.Model, error) {
	var out []sim.Model
	for f := range z.Families {
		slo, err := z.SLO(f, rule, scale, traceSLO[f])
		if err != nil {
			return nil, err
		}

		m := sim.Model{Name: z.Families[f].Name, SLO: sim.Duration(slo)}
		for i := range z.Families[f].Variants {
			v := &z.Families[f].Variants[i]
			w := sim.Variant{Name: v.Name, Accuracy: v.Accuracy, Profiles: make([]*profile.Profile, len(kinds))}
			for place, kind := range kinds {
				p, err := v.Profile(kind, sizeMax)
				if err != nil {
					return nil, fmt.Errorf("family %s variant %s on %s: %w", m.Name, v.Name, z.Kinds[kind], err)
				}
				w.Profiles[place] = p
			}
			m.Variants = append(m.Variants, w)
		}
		out = append(out, m)
	}
	return out, nil
}
