package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/goodput"
	"downbeat.dev/bench/policy"
	"downbeat.dev/core/sim"
)

// benchGoodput finds the highest load at which every model answers 99 % of its requests within its SLO.
func benchGoodput() command {
	return command{name: "goodput", summary: "find the highest load at which each policy keeps every model's SLO, in virtual time",
		run: func(ctx context.Context, args []string) error {
			fs := flag.NewFlagSet("downbeat bench goodput", flag.ContinueOnError)
			o := goodput.DefaultOptions()
			setting := fs.String("setting", "table4", "`settings`, separated by commas: a name, the beginning of names (table4, fig7-gamma), or all")
			policies := fs.String("policy", "downbeat,symphony-printed,symphony-windowed", policiesHelp(policy.All(), func(p policy.Named) string { return p.Name }))
			fs.IntVar(&o.Seeds, "seeds", o.Seeds, "`number` of seeds; their requests are counted together")
			fs.Uint64Var(&o.SeedBase, "seed-base", 0, "`number` below the first seed; all published results use 0")
			fs.BoolVar(&o.Known, "known-rates", false, "tell policies the true arrival rates instead of letting them estimate")
			span := fs.Duration("span", o.Span, "simulated time per seed")
			ctrl := fs.Duration("ctrl", 0, "delay of a control message (d_ctrl in the Symphony paper, which reports 100µs)")
			data := fs.Duration("data", 0, "delay per input of a batch (d_data in the Symphony paper, which reports 50µs)")
			out := fs.String("out", "", "`directory` for goodput.csv, goodput.svg and the figures; empty: write no files")
			file := fs.String("rows", "", "`file` to which each row is appended as a line of JSON; rows that it already holds are not measured again, so an interrupted run resumes")
			repository := fs.String("repository", "", "`directory` to which the setting's models are written, to serve them on emulated GPUs; nothing is measured")
			format := fs.String("o", "table", "output `format`: table, json or csv")

			if err := parse(fs, args); err != nil {
				return err
			}
			if *repository != "" {
				return writeSetting(*setting, *repository)
			}

			o.Span, o.Ctrl, o.Data = *span, sim.Duration(*ctrl), sim.Duration(*data)
			return runGoodput(ctx, *setting, *policies, *format, *out, *file, o)
		}}
}

// writeSetting writes one setting's models to a repository and prints the commands that serve them and send their
// load.
func writeSetting(setting, dir string) error {
	settings, err := goodput.Select(setting)
	if err != nil {
		return usageErrorf("-%v", err)
	}
	if len(settings) != 1 {
		return usageErrorf("-setting %s -repository %s: %d settings; want one", setting, dir, len(settings))
	}

	s := &settings[0]
	if err := s.WriteRepository(dir); err != nil {
		return fmt.Errorf("-repository %s: %w", dir, err)
	}
	fmt.Printf("%d models are in %s. Their load, in two terminals:\n\n  downbeat serve -models %s -emulate %d\n  downbeat load -rate R -duration 30s\n", len(s.Models), dir, dir, s.GPUs)
	return nil
}

// checkGoodput refuses values of flags that no run could use.
func checkGoodput(format string, o goodput.Options) error {
	switch {
	case format != "table" && format != "json" && format != "csv":
		return usageErrorf("-o %s: want table, json or csv", format)
	case o.Seeds < 1 || o.Seeds > 1000:
		return usageErrorf("-seeds %d: want 1 to 1000", o.Seeds)
	case o.SeedBase > 1<<62:
		return usageErrorf("-seed-base %d: want at most %d", o.SeedBase, uint64(1)<<62)
	case o.Span < 1e9 || o.Span > 3600e9:
		return usageErrorf("-span %v: want 1s to 1h", o.Span)
	case o.Ctrl < 0 || o.Ctrl > 1e9 || o.Data < 0 || o.Data > 1e9:
		return usageErrorf("-ctrl %v -data %v: want 0 to 1s", time.Duration(o.Ctrl), time.Duration(o.Data))
	}
	return nil
}

func runGoodput(ctx context.Context, setting, policies, format, out, file string, o goodput.Options) error {
	if err := checkGoodput(format, o); err != nil {
		return err
	}
	settings, err := goodput.Select(setting)
	if err != nil {
		return usageErrorf("-%v", err)
	}
	with, err := goodput.Policies(policies)
	if err != nil {
		return usageErrorf("-%v", err)
	}

	if out != "" { // fail before hours of work, not after
		if err := goodput.MakeDir(out); err != nil {
			return fmt.Errorf("-out %s: %w", out, err)
		}
	}

	kept, done, err := openRows(file)
	if err != nil {
		return err
	}
	defer kept.Close()

	// A run takes minutes to hours, so each row is printed when it is ready.
	var lost error // error while writing kept rows
	rows, err := goodput.Compare(ctx, settings, with, o, done, func(r goodput.Row) {
		if kept != nil {
			lost = errors.Join(lost, figure.WriteLines(kept, r))
		}
		if format == "json" {
			_ = figure.WriteLines(os.Stdout, r) // a closed pipe ends the process
			return
		}
		fmt.Fprintf(os.Stderr, "%s %s: %.0f r/s\n", r.Setting, r.Policy, r.Goodput)
	})
	if err := errors.Join(err, lost); err != nil {
		return err
	}

	if out != "" {
		if err := goodput.WriteDir(out, rows); err != nil {
			return err
		}
	}

	switch format {
	case "table":
		return goodput.WriteTable(os.Stdout, rows)
	case "csv":
		return goodput.WriteCSV(os.Stdout, rows)
	}
	return nil
}

// openRows opens the file that keeps rows and returns the rows in it. An empty name means no file.
func openRows(name string) (*os.File, []goodput.Row, error) {
	if name == "" {
		return nil, nil, nil
	}

	// Open for appending, to keep the rows of an interrupted run.
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, nil, err
	}

	rows, err := goodput.ReadJSON(f)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("-rows %s: %w", name, err), f.Close())
	}
	return f, rows, nil
}

// benchSchedule runs a workload from files once, so that outsiders can check the schedule.
func benchSchedule() command {
	return command{name: "schedule", summary: "schedule the arrivals of a file in virtual time and write every batch and outcome",
		run: func(ctx context.Context, args []string) error {
			fs := flag.NewFlagSet("downbeat bench schedule", flag.ContinueOnError)
			r := goodput.Replay{}
			fs.StringVar(&r.Arrivals, "arrivals", "", "`file` of lines arrival_us,model in order of time, with or without that header; -: standard input (required)")
			fs.StringVar(&r.Profiles, "profiles", "", "CSV `file` with the header model,alpha_ms,beta_ms,slo_ms; -: standard input (required)")
			fs.StringVar(&r.Batches, "batches", "", "`file` to write: batch,gpu,model,size,start_ns,end_ns,requests; requests are lines of -arrivals, counted from 0 (required)")
			fs.StringVar(&r.Outcomes, "outcomes", "", "`file` to write: request,outcome,time_ns; an outcome is served, late or dropped (required)")
			fs.IntVar(&r.GPUs, "gpus", 0, "`number` of GPUs (required)")
			ctrl := fs.Float64("ctrl-us", 0, "delay of a control message, in `microseconds`")
			data := fs.Float64("data-us", 0, "delay per input of a batch, in `microseconds`")
			name := fs.String("policy", "downbeat", "scheduling `policy`, one of those of bench goodput")

			if err := parse(fs, args); err != nil {
				return err
			}

			// All four files are required; report a missing one by its flag.
			for _, f := range [][2]string{{"arrivals", r.Arrivals}, {"profiles", r.Profiles}, {"batches", r.Batches}, {"outcomes", r.Outcomes}} {
				if f[1] == "" {
					return usageErrorf("bench schedule: -%s is missing: want a file name", f[0])
				}
			}
			if !(*ctrl >= 0 && *ctrl <= 1e6) || !(*data >= 0 && *data <= 1e6) {
				return usageErrorf("bench schedule: -ctrl-us %g -data-us %g: want 0 to 1000000", *ctrl, *data)
			}

			// The flags are in microseconds, the World in nanoseconds.
			r.Ctrl, r.Data = sim.Duration(*ctrl*1e3), sim.Duration(*data*1e3)
			one, err := goodput.Policies(*name)
			if err != nil {
				return usageErrorf("bench schedule: -%v", err)
			}
			if len(one) != 1 {
				return usageErrorf("bench schedule: -policy %s: want one policy", *name)
			}
			r.Policy = one[0]
			if err := r.Check(); err != nil {
				return usageErrorf("bench schedule: %v", err)
			}
			return r.Run(os.Stdout)
		}}
}
