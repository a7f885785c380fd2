package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"downbeat.dev/bench/accuracy"
	"downbeat.dev/bench/drift"
	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/goodput"
	"downbeat.dev/bench/sessions"
	"downbeat.dev/bench/symphony"
)

const (
	symphonyResults = "bench/results/symphony"
	accuracyResults = "bench/results/accuracy"
	driftResults    = "bench/results/adainf"
	rimResults      = "bench/results/sessions"
)

// benchFigures makes Symphony's figures in virtual time, and the page that lists the figures of all papers.
func benchFigures() command {
	return command{name: "figures", summary: "make Symphony's figures in virtual time, and write docs/figures.md, which lists the figures of all four papers",
		run: func(ctx context.Context, args []string) error {
			fs := flag.NewFlagSet("downbeat bench figures", flag.ContinueOnError)
			in := symphonyInputs(fs)
			root := fs.String("root", ".", "`directory` of the repository, for "+symphonyResults+" and docs/figures.md")
			only := fs.String("only", "", "`IDs` of Symphony's figures to make, separated by commas; empty: all; none: write only the page")
			if err := parse(fs, args); err != nil {
				return err
			}
			if err := in.Validate(); err != nil {
				return usageErrorf("bench figures: %v", err)
			}
			figures, err := figuresNamed(*only)
			if err != nil {
				return err
			}

			dir := filepath.Join(*root, symphonyResults)
			if err := goodput.MakeDir(dir); err != nil {
				return fmt.Errorf("-root %s: %w", *root, err)
			}
			for _, f := range figures {
				fmt.Fprintf(os.Stderr, "symphony %s: %s\n", f.ID, f.Title)
				if err := f.Write(ctx, in, dir); err != nil {
					return err
				}
			}

			// The page lists all figures, not only those made by this call.
			return writeFigurePage(*root)
		}}
}

// figuresNamed selects Symphony's figures by their IDs.
func figuresNamed(only string) ([]symphony.Figure, error) {
	switch only {
	case "":
		return symphony.Figures, nil
	case "none":
		return nil, nil
	}

	var out []symphony.Figure
	for id := range strings.SplitSeq(only, ",") {
		f, err := symphony.FindFigure(id)
		if err != nil {
			return nil, usageErrorf("-only %v", err)
		}
		out = append(out, f)
	}
	return out, nil
}

func writeFigurePage(root string) error {
	page, err := os.Create(filepath.Join(root, "docs/figures.md"))
	if err != nil {
		return err
	}
	return errors.Join(figure.WritePage(page, root, papers()), page.Close())
}

// papers lists the papers of the page. It includes the figures that do not run in virtual time.
func papers() []figure.Paper {
	s := figure.Paper{Name: "symphony", Title: "Symphony", Notes: []string{
		"Profiles are those of the paper's appendix B; table 4's ResNet50 is not among them. Table 5 has 35 models, although the text speaks of 37.",
		"The pseudocode of appendix C assigns `exec_at` twice, so the text's rule on βλ is dead code in it. If the rule is followed as the text says, it loses up to 34 % on the mixed zoo. *Printed* is the code; decision 0001 says what we do.",
		"The paper does not give the durations and seeds of its searches. [bench/results/goodput](../bench/results/goodput) has numbers with five seeds of 30 s, and of thirteen policies.",
		"Where random or exact solvers have a time limit (f15, s2), their results depend on the machine that made them.",
	}}
	for _, f := range symphony.Figures {
		s.Entries = append(s.Entries, figure.Entry{ID: f.ID, Title: f.Title, Command: "downbeat bench figure symphony " + f.ID, Dir: symphonyResults, Where: "virtual time"})
	}

	// Two figures measure this host and have commands of their own; insert them where the paper has them.
	at := slices.IndexFunc(s.Entries, func(e figure.Entry) bool { return e.ID == "f13" })
	s.Entries = slices.Insert(s.Entries, at,
		figure.Entry{ID: "growth", Title: "f11 (left): requests/s over threads, models and GPUs", Command: "downbeat bench dispatch -growth DIR", Dir: "bench/results/dispatch", Where: "this host's cores"},
		figure.Entry{ID: "figure12", Title: "f12: CDF of an incast fetch", Command: "downbeat bench transfer -o csv -figure figure12.svg", Dir: "bench/results/transfer", Where: "this host; RDMA wants a NIC"})

	p := figure.Paper{Name: "proteus", Title: "Proteus", Notes: []string{
		"Decision 0090 says how the public data is read and repaired, 0092 what the baselines are. The paper's own trace of figure 4 is not public.",
		"Without flags the commands read generated profiles and traces. The results here were made with `-trace $P/zipf_exponential,$P/zipf_exponential_bursty,figure4 -profiles $P`, where `$P` is the directory of the public data; f8 with `-gap 0.005` and without `figure4`, load with the published bursts alone, f10 without data ([bench/results/accuracy](../bench/results/accuracy)).",
	}}
	for _, f := range accuracy.Figures {
		p.Entries = append(p.Entries, figure.Entry{ID: f.ID, Title: f.Title, Command: "downbeat bench figure proteus " + f.ID, Dir: accuracyResults, Where: "virtual time"})
	}

	a := figure.Paper{Name: "adainf", Title: "AdaInf", Notes: []string{
		"Time and GPUs are virtual, training and answers are real (V+L, decision 0153). Decision 0181 says what AdaInf and its rivals are given. Figures of what was learnt are drawn from the rows that `downbeat bench drift -o periods` prints.",
		"f8 to f13 and f23 run cuda/residency's own decisions in virtual time. The GPU's rates are stated, not measured, and the load is the application of this repository (decisions 0288, 0321).",
	}}
	for _, f := range drift.Figures {
		if f.OnGPU != "" {
			a.Notes = append(a.Notes, fmt.Sprintf("On a GPU %s is measured by `%s`.", f.ID, f.OnGPU))
		}
		a.Entries = append(a.Entries, figure.Entry{ID: f.ID, Title: f.Title, Command: "downbeat bench figure adainf " + f.ID, Dir: driftResults, Where: cmp.Or(f.Where, "virtual time, real training")})
	}
	return []figure.Paper{s, p, rimPaper(), a}
}

// rimPaper returns the page's entries for the Rim paper.
func rimPaper() figure.Paper {
	r := figure.Paper{Name: "rim", Title: "Rim", Notes: []string{
		"Profiles of Rim's applications are not published. Decision 0142 says which profiles are stated, 0282 which part of a GPU a model uses alone, and 0315 what is measured with models of this repository.",
	}}
	for _, f := range sessions.Figures {
		r.Entries = append(r.Entries, figure.Entry{ID: f.ID, Title: f.Title, Command: "downbeat bench figure rim " + f.ID, Dir: rimResults, Where: cmp.Or(f.Where, "virtual time")})
	}
	at := slices.IndexFunc(r.Entries, func(e figure.Entry) bool { return e.ID == "t14" })
	r.Entries = slices.Insert(r.Entries, at, figure.Entry{ID: "t11", Title: "10 MB from one stage to the next on another backend (text result 11)", Where: "this host",
		Command: "downbeat bench transfer -op stages -provider shm,tcp -bytes 10485760 -o csv", Dir: rimResults})
	r.Entries = append(r.Entries, figure.Entry{ID: "f10c", Title: "use of a GPU by single models", Where: "needs a GPU",
		Command: "downbeat bench gpu -graphs resnet50 -batches 1", Dir: rimResults})
	return r
}
