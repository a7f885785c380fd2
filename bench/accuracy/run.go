package accuracy

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"downbeat.dev/bench/family"
	"downbeat.dev/bench/policy/scaling"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// Device is the number of a cluster's devices of one kind.
type Device struct {
	Kind  string
	Count int
}

const devicesMax = 4096

// ParseDevices parses a list such as cpu=20,1080ti=10,v100=10.
func ParseDevices(list string) ([]Device, error) {
	var out []Device
	total := 0
	for _, item := range strings.Split(list, ",") {
		kind, text, ok := strings.Cut(item, "=")
		n, err := strconv.Atoi(text)
		if !ok || kind == "" || err != nil || n < 1 {
			return nil, fmt.Errorf("%q: want KIND=COUNT, COUNT at least 1", item)
		}

		if slices.ContainsFunc(out, func(d Device) bool { return d.Kind == kind }) {
			return nil, fmt.Errorf("%q: kind %s appears twice", item, kind)
		}
		if total += n; total > devicesMax {
			return nil, fmt.Errorf("more than %d devices", devicesMax)
		}
		out = append(out, Device{kind, n})
	}
	return out, nil
}

// Setting is one experiment without its policy.
type Setting struct {
	Trace    *family.Trace
	Zoo      *family.Zoo
	Devices  []Device
	Rule     family.Rule
	Scale    float64       // of the SLO
	LoadTime time.Duration // to load a variant on a device that hosts another
	SizeMax  int           // largest batch
	Gap      float64       // of the baselines' programs to their optimum
}

// DefaultSetting is the paper's: 40 devices, twice the SLO, loading in no time, batches up to 8.
func DefaultSetting() Setting {
	return Setting{
		Devices: []Device{{"cpu", 20}, {"1080ti", 10}, {"v100", 10}},
		Rule:    family.RuleArtifact, Scale: 2, SizeMax: 8, Gap: 1e-3,
	}
}

// CheckKinds returns an error if a kind of the devices has no profiles.
func CheckKinds(devices []Device, zoo *family.Zoo) error {
	for _, d := range devices {
		if !slices.Contains(zoo.Kinds, d.Kind) {
			return fmt.Errorf("kind %q of the devices has no profiles: want one of %s", d.Kind, strings.Join(zoo.Kinds, ", "))
		}
	}
	return nil
}

// World returns the setting as a simulated world.
func (s *Setting) World() (*sim.World, error) {
	zoo, err := s.Zoo.Select(s.Trace.Families)
	if err != nil {
		return nil, err
	}

	if err := CheckKinds(s.Devices, zoo); err != nil {
		return nil, err
	}

	// A World numbers kinds by their order among the devices, not in the zoo.
	w := &sim.World{Arrivals: s.Trace.Arrivals}
	var kinds []int
	for place, d := range s.Devices {
		kinds = append(kinds, slices.Index(zoo.Kinds, d.Kind))
		for range d.Count {
			w.Kinds = append(w.Kinds, uint8(place))
		}
	}

	w.GPUs = len(w.Kinds)
	w.Models, err = zoo.Models(kinds, s.Rule, s.Scale, s.Trace.SLO, s.SizeMax)
	return w, err
}

// counts returns the number of devices by kind.
func (s *Setting) counts() []int {
	var out []int
	for _, d := range s.Devices {
		out = append(out, d.Count)
	}
	return out
}

// Row is one run's line in the tables.
type Row struct {
	Trace             string  `json:"trace"`
	Data              string  `json:"data"` // published, repaired or made
	Policy            string  `json:"policy"`
	SLORule           string  `json:"slo_rule"`
	SLOScale          float64 `json:"slo_scale"`
	LoadTimeS         float64 `json:"load_time_s"`
	Requests          int     `json:"requests"`
	Served            int     `json:"served"`
	ThroughputRPS     float64 `json:"throughput_rps"`
	EffectiveAccuracy float64 `json:"effective_accuracy"`
	LargestDrop1s     float64 `json:"largest_drop_1s"`
	LargestDrop10s    float64 `json:"largest_drop_10s"`
	ViolationRatio    float64 `json:"violation_ratio"`
	WorstFamily       string  `json:"worst_family"`
	WorstFamilyDrop   float64 `json:"worst_family_drop"`
	LPBoundAccuracy   float64 `json:"lp_bound_accuracy"`
	// PastBound1s and PastBound10s are the largest differences between a window's bound and its accuracy.
	PastBound1s  float64 `json:"largest_drop_past_bound_1s"`
	PastBound10s float64 `json:"largest_drop_past_bound_10s"`
	PlanMS       float64 `json:"plan_ms"`
	Plans        int     `json:"plans"`
}

// Result is a run: its row and its details.
type Result struct {
	Row
	Measured *Measured
}

// Comparison is a setting with its bound and the runs of some policies.
type Comparison struct {
	Setting Setting
	Bounds  *Bounds
	Results []Result
}

// Compare runs policies one after another. progress, unless nil, is called with each row.
func Compare(ctx context.Context, s Setting, policies []scaling.Named, progress func(Row)) (*Comparison, error) {
	w, err := s.World()
	if err != nil {
		return nil, err
	}

	// The bound depends only on the demand, so all policies share it.
	c := &Comparison{Setting: s}
	if c.Bounds, err = findBounds(ctx, w, s.counts(), int(s.Trace.Span()/time.Second)); err != nil {
		return nil, err
	}

	for _, p := range policies {
		r, err := c.run(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("policy %s: %w", p.Name, err)
		}
		c.Results = append(c.Results, r)
		if progress != nil {
			progress(r.Row)
		}
	}
	return c, nil
}

// run runs one policy in its own world.
func (c *Comparison) run(ctx context.Context, named scaling.Named) (Result, error) {
	// Each policy needs its own World, which holds its measurements.
	w, err := c.Setting.World()
	if err != nil {
		return Result{}, err
	}
	seconds := int(c.Setting.Trace.Span() / time.Second)
	m := recordOutcomes(w, seconds)
	m.work = recordWork(w, len(c.Setting.Devices), seconds)
	p := named.New(ctx, w, scaling.Settings{LoadTime: sched.Duration(c.Setting.LoadTime), Gap: c.Setting.Gap})
	w.Run(p)

	// A run continues after a plan failed, but its numbers would not be the policy's.
	report := p.Report()
	if err := report.Err; err != nil {
		return Result{}, err
	}
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	return Result{c.row(named.Name, m, report), m}, nil
}

func (c *Comparison) row(name string, m *Measured, report scaling.Report) Row {
	total := m.Total()
	worst, drop := m.WorstFamily()
	r := Row{
		Trace: c.Setting.Trace.Name, Data: c.Setting.Zoo.Name, Policy: name,
		SLORule: string(c.Setting.Rule), SLOScale: c.Setting.Scale, LoadTimeS: c.Setting.LoadTime.Seconds(),
		Requests: total.Arrived, Served: total.Served, ThroughputRPS: float64(total.Served) / c.Setting.Trace.Span().Seconds(),
		EffectiveAccuracy: 1 - total.Drop(), LargestDrop1s: m.LargestDrop(1), LargestDrop10s: m.LargestDrop(10),
		ViolationRatio: 1 - float64(total.Served)/float64(total.Arrived),
		WorstFamily:    c.Setting.Trace.Families[worst], WorstFamilyDrop: drop,
		LPBoundAccuracy: c.Bounds.Accuracy, PastBound1s: c.Bounds.past(m, 1), PastBound10s: c.Bounds.past(m, 10),
		Plans: report.Plans,
	}

	// A policy that never plans has no planning time.
	if report.Plans > 0 {
		r.PlanMS = report.Elapsed.Seconds() * 1e3 / float64(report.Plans)
	}
	return r
}
