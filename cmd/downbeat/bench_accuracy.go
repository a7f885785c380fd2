package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"downbeat.dev/bench/accuracy"
	"downbeat.dev/bench/family"
	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/policy/scaling"
)

// accuracyInputs are the flags that select families, traces and profiles.
type accuracyInputs struct {
	traces, profiles, devices string
	data, rule, column        string
	seed                      uint64
	setting                   accuracy.Setting
}

func (in *accuracyInputs) register(fs *flag.FlagSet) {
	in.setting = accuracy.DefaultSetting()
	fs.StringVar(&in.traces, "trace", "diurnal", "`traces`, separated by commas: generated ones (diurnal, bursty, figure4), or directories with a file FAMILY.txt of lines arrival_ms,1,slo_ms")
	fs.StringVar(&in.profiles, "profiles", "made", "`directory` with aggregate_profiled.csv and model_variants/FAMILY as Proteus published them; made: generated profiles")
	fs.StringVar(&in.devices, "devices", "cpu=20,1080ti=10,v100=10", "numbers of `devices` by kind")
	fs.StringVar(&in.data, "data", "published", "`forms` of the profiles, separated by commas: published, or repaired, which corrects errors of the published ones (docs/decisions/0090)")
	fs.StringVar(&in.rule, "slo-rule", string(in.setting.Rule), "`rule` for each family's SLO, before -slo-scale: artifact (the table of Proteus's simulator), cpu (latency of the fastest variant on a CPU) or trace (half of the trace's SLO)")
	fs.StringVar(&in.column, "latency", "median", "latency `column` of the profiles: median or mean")
	fs.IntVar(&in.setting.SizeMax, "batch-max", in.setting.SizeMax, "largest batch `size`")
	fs.Float64Var(&in.setting.Gap, "gap", in.setting.Gap, "relative `gap` to the optimum at which a baseline's integer program counts as solved")
	fs.Uint64Var(&in.seed, "seed", 1, "seed of generated traces")
}

// load checks the flags and reads the inputs. It returns one setting per trace and form of the profiles.
func (in *accuracyInputs) load() ([]accuracy.Setting, error) {
	s := in.setting
	var err error

	// Check all flags before reading the first file.
	if s.Devices, err = accuracy.ParseDevices(in.devices); err != nil {
		return nil, usageErrorf("-devices: %v", err)
	}
	if s.Rule = family.Rule(in.rule); !slices.Contains(family.Rules, s.Rule) {
		return nil, usageErrorf("-slo-rule %q: want artifact, cpu or trace", in.rule)
	}
	if s.SizeMax < 1 || s.SizeMax > 1024 {
		return nil, usageErrorf("-batch-max %d: want 1 to 1024", s.SizeMax)
	}
	if !(s.Gap >= 0 && s.Gap <= 0.5) {
		return nil, usageErrorf("-gap %v: want 0 to 0.5", s.Gap)
	}

	zoos, err := in.readZoos()
	if err != nil {
		return nil, err
	}

	for _, zoo := range zoos {
		if err := accuracy.CheckKinds(s.Devices, zoo); err != nil {
			return nil, usageErrorf("-devices: %v", err)
		}
	}

	var out []accuracy.Setting
	for _, name := range strings.Split(in.traces, ",") {
		if s.Trace, err = in.readTrace(name); err != nil {
			return nil, fmt.Errorf("-trace %s: %w", name, err)
		}
		for _, zoo := range zoos {
			s.Zoo = zoo

			// Build every World now, so that a bad one is reported before the other settings have run.
			if _, err := s.World(); err != nil {
				return nil, err
			}
			out = append(out, s)
		}
	}
	return out, nil
}

// readTrace reads a directory, or generates a trace if name is a shape.
func (in *accuracyInputs) readTrace(name string) (*family.Trace, error) {
	info, err := os.Stat(name)
	if err == nil && info.IsDir() {
		return family.ReadTrace(os.DirFS(name), filepath.Base(filepath.Clean(name)))
	}

	shape, err := family.FindShape(name)
	if err != nil {
		return nil, usageErrorf("no such directory, and no shape %v", err)
	}
	return family.Make(shape, in.seed), nil
}

// readZoos reads or makes the profiles: as published, repaired, or both.
func (in *accuracyInputs) readZoos() ([]*family.Zoo, error) {
	// The latency column matters only for measured profiles: made ones have one latency per batch size.
	zoo := family.MakeZoo()
	if in.profiles != "made" {
		column := map[string]family.Column{"median": family.ColumnMedian, "mean": family.ColumnMean}[in.column]
		if column == "" {
			return nil, usageErrorf("-latency %q: want median or mean", in.column)
		}
		var err error
		if zoo, err = family.ReadZoo(os.DirFS(in.profiles), column); err != nil {
			return nil, fmt.Errorf("-profiles %s: %w", in.profiles, err)
		}
	}

	var out []*family.Zoo
	for _, data := range strings.Split(in.data, ",") {
		switch {
		case data == "published":
			out = append(out, zoo)
		case data == "repaired" && in.profiles != "made":
			out = append(out, zoo.Repair())
		case data == "repaired": // made profiles have nothing to repair
		default:
			return nil, usageErrorf("-data %q: want published, repaired or both", data)
		}
	}

	if len(out) == 0 {
		out = append(out, zoo)
	}
	return out, nil
}

// benchAccuracy runs accuracy-scaling policies over traces of families.
func benchAccuracy() command {
	return command{name: "accuracy", summary: "measure accuracy and SLO violations of families of model variants under load, in virtual time, beside Proteus and others",
		run: func(ctx context.Context, args []string) error {
			fs := flag.NewFlagSet("downbeat bench accuracy", flag.ContinueOnError)
			var in accuracyInputs
			in.register(fs)
			fs.Float64Var(&in.setting.Scale, "slo-scale", in.setting.Scale, "`factor` by which every SLO is multiplied")
			load := fs.Duration("load-time", 0, "time that a device takes to load another variant, for policies that hold one variant per device")
			policies := fs.String("policy", "downbeat,proteus,sommelier,infaas,clipper-ht,clipper-ha", policiesHelp(scaling.All(), func(p scaling.Named) string { return p.Name }))
			format := fs.String("o", "table", "output `format`: table, json, csv, or causes: why the ten worst seconds of each run lost more than their bound")

			if err := parse(fs, args); err != nil {
				return err
			}
			in.setting.LoadTime = *load
			return runAccuracy(ctx, &in, *policies, *format)
		}}
}

func runAccuracy(ctx context.Context, in *accuracyInputs, policies, format string) error {
	switch {
	case format != "table" && format != "json" && format != "csv" && format != "causes":
		return usageErrorf("-o %q: want table, json, csv or causes", format)
	case !(in.setting.Scale >= 0.1 && in.setting.Scale <= 100):
		return usageErrorf("-slo-scale %v: want 0.1 to 100", in.setting.Scale)
	case in.setting.LoadTime < 0 || in.setting.LoadTime > time.Minute:
		return usageErrorf("-load-time %v: want 0 to 1m", in.setting.LoadTime)
	}

	with, err := scaling.Select(policies)
	if err != nil {
		return usageErrorf("-policy: %v", err)
	}
	settings, err := in.load()
	if err != nil {
		return err
	}

	var rows []accuracy.Row
	for _, s := range settings {
		// Progress goes to standard error; standard output carries the result.
		fmt.Fprintf(os.Stderr, "%s (%d requests, %v), %s profiles, seed %d\n", s.Trace.Name, len(s.Trace.Arrivals), s.Trace.Span(), s.Zoo.Name, in.seed)
		c, err := accuracy.Compare(ctx, s, with, func(r accuracy.Row) {
			rows = append(rows, r)
			if format == "json" {
				_ = figure.WriteLines(os.Stdout, r) // a closed pipe ends the process
				return
			}
			fmt.Fprintf(os.Stderr, "  %s: accuracy %.4f, violations %.5f\n", r.Policy, r.EffectiveAccuracy, r.ViolationRatio)
		})
		if err != nil {
			return err
		}
		if format == "causes" {
			if err := writeCauses(ctx, c); err != nil {
				return err
			}
		}
	}

	switch format {
	case "table":
		return accuracy.WriteTable(os.Stdout, rows)
	case "csv":
		return accuracy.WriteCSV(os.Stdout, rows)
	}
	return nil
}

// causesOf is the number of seconds whose losses are explained.
const causesOf = 10

// writeCauses prints what the worst seconds of each run lost, by cause.
func writeCauses(ctx context.Context, c *accuracy.Comparison) error {
	for i := range c.Results {
		worst, err := c.WorstCauses(ctx, &c.Results[i], causesOf)
		if err != nil {
			return err
		}
		if err := accuracy.WriteCauses(os.Stdout, &c.Results[i], worst, c.Results); err != nil {
			return err
		}
	}
	return nil
}
