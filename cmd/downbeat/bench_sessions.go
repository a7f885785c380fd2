package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"

	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/goodput"
	"downbeat.dev/bench/sessions"
)

// benchSessions serves sessions of Rim's applications in virtual time.
func benchSessions() command {
	return command{name: "sessions", summary: "send streams of frames through DAGs of models, in virtual time: finish rate and number of sessions, beside Rim and its baselines",
		run: func(ctx context.Context, args []string) error {
			fs := flag.NewFlagSet("downbeat bench sessions", flag.ContinueOnError)
			workloads := fs.String("workload", "W-1,W-2,W-3,f9", "`workloads`, separated by commas: W-1, W-2, W-3, f9, t8, or the name of a JSON file")
			policies := fs.String("policy", "downbeat,rim,nexus,clipper", policiesHelp(sessions.Policies(), func(p sessions.Policy) string { return p.Name }))
			count := fs.Int("workers", 0, "`number` of workers with one GPU each; 0: as the workload says")
			seed := fs.Uint64("seed", 1, "seed of phases, of f9's sessions and of mixes")
			mixes := fs.Int("mixes", 0, "run no workload: compare admission with full simulations over this `number` of random mixes")
			kills := fs.Int("kills", 0, "run no workload: kill a backend in this `number` of random clusters that are full of sessions")
			format := fs.String("o", "table", "output `format`: table or json")
			if err := parse(fs, args); err != nil {
				return err
			}

			if err := checkFormat(*format); err != nil {
				return err
			}
			if *count < 0 || *count > 1000 {
				return usageErrorf("-workers %d: want 0 to 1000", *count)
			}
			if *mixes < 0 || *mixes > 1e6 {
				return usageErrorf("-mixes %d: want 0 to 1000000", *mixes)
			}
			if *kills < 0 || *kills > 1e6 {
				return usageErrorf("-kills %d: want 0 to 1000000", *kills)
			}

			// Mixes are a separate measurement: they run no workload and no policy.
			if *mixes > 0 {
				j, err := sessions.JudgeAdmission(ctx, *mixes, *seed)
				if err != nil {
					return err
				}
				return j.Write(os.Stdout, *format == "json")
			}

			if *kills > 0 {
				l, err := sessions.JudgeLoss(ctx, *kills, *seed)
				if err != nil {
					return err
				}
				return l.Write(os.Stdout, *format == "json")
			}

			chosen, err := sessions.Select(*policies)
			if err != nil {
				return usageErrorf("-%v", err)
			}
			return runSessions(ctx, strings.Split(*workloads, ","), chosen, *count, *seed, *format == "json")
		}}
}

func runSessions(ctx context.Context, workloads []string, policies []sessions.Policy, workers int, seed uint64, asJSON bool) error {
	var all []sessions.Result
	for _, name := range workloads {
		w, err := findWorkload(name, seed)
		if err != nil {
			return err
		}
		if workers > 0 {
			w.Workers = workers
		}

		for _, p := range policies {
			if err := ctx.Err(); err != nil {
				return err
			}
			r, err := p.Run(w, seed)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", name, p.Name, err)
			}
			all = append(all, r)
		}
	}

	if asJSON {
		return figure.WriteLines(os.Stdout, all...)
	}
	sessions.WriteTable(os.Stdout, all)
	return nil
}

// findWorkload returns a workload by its name. An unknown name that contains a dot or a slash is the name of a file.
func findWorkload(name string, seed uint64) (sessions.Workload, error) {
	w, err := sessions.FindWorkload(name, seed)
	switch {
	case err == nil:
		return w, nil
	case strings.ContainsAny(name, "./"):
		return sessions.ReadWorkload(name)
	}
	return w, usageErrorf("%v", err)
}

// figureOfRim makes one figure of the Rim paper.
func figureOfRim(ctx context.Context, id string, args []string) error {
	fs := figureFlags("rim", figure.IDs(sessions.Figures, func(f sessions.Figure) string { return f.ID }))
	seed := fs.Uint64("seed", 1, "seed of phases and of f9's sessions")
	out := fs.String("out", "out/rim", "`directory` for ID.csv, ID.svg and claims.csv")
	if err := parse(fs, args); err != nil {
		return err
	}

	figure, err := sessions.FindFigure(id)
	if err != nil {
		return usageErrorf("figure %v", err)
	}
	if err := goodput.MakeDir(*out); err != nil {
		return fmt.Errorf("-out %s: %w", *out, err)
	}

	fmt.Fprintf(os.Stderr, "rim %s: %s, seed %d\n", figure.ID, figure.Title, *seed)
	return printFiles(*out, figure.ID, figure.Write(ctx, *seed, *out))
}
