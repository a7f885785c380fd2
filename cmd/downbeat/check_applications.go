package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/core/app"
	"downbeat.dev/core/model"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/repo"
)

// applicationCheck checks applications against the models of their repository.
type applicationCheck struct {
	dirs, draw string
	rate       float64
	hop        time.Duration
}

func (c *applicationCheck) register(fs *flag.FlagSet) {
	fs.StringVar(&c.dirs, "models", "", "model repository `directories`, separated by commas, whose applications are checked instead of the host")
	fs.StringVar(&c.draw, "draw", "", "with -models: `directory` for a picture of each application, NAME.svg; empty: none")
	fs.Float64Var(&c.rate, "rate", c.rate, "with -models: `frames` per second for which budgets and costs are computed")
	fs.DurationVar(&c.hop, "hop", 500*time.Microsecond, "with -models: latency from one stage to the next")
}

func (c *applicationCheck) checkFlags() error {
	if !(c.rate > 0 && c.rate <= 1e6) || c.hop < 0 || c.hop > time.Second {
		return usageErrorf("check: -rate %v, -hop %v: want more than 0 to 1000000 and 0 to 1s", c.rate, c.hop)
	}
	return nil
}

// run prints a table of each application's stages. The error names the applications that do not fit.
func (c *applicationCheck) run(w io.Writer) error {
	if err := c.checkFlags(); err != nil {
		return err
	}
	r, err := repo.OpenAll(strings.Split(c.dirs, ","), repo.Options{Graph: onnx.Signature})
	if err != nil {
		return err
	}

	// Report every refused application, not only the first.
	graphs, refused := r.Graphs()
	var failed error
	for _, e := range append(r.Errors, refused...) {
		failed = errors.Join(failed, e)
	}
	for _, g := range graphs {
		failed = errors.Join(failed, c.report(w, r, g))
	}
	fmt.Fprintf(w, "%d models, %d applications\n", len(r.Names()), len(graphs))
	return failed
}

// report prints one application and draws it.
func (c *applicationCheck) report(w io.Writer, r *repo.Repository, g *app.Graph) error {
	// Look profiles up by step: an application may use one model in several steps.
	budgets, err := g.Split(func(step int) *profile.Profile { return r.Profile(g.Steps[step].Model, g.Steps[step].Version) }, c.rate, c.hop)
	if err != nil {
		return err
	}

	unmeasured := unmeasuredModels(r, g)
	take := "take"
	if len(unmeasured) > 0 {
		take = "take at least"
	}
	fmt.Fprintf(w, "%s: %v, %.3g frames/s %s %.3g GPUs\n  %s\n  %s\n", g.Name, g.Latency, c.rate, take, budgets.Total, inputsOf(g.Inputs), outputsOf(g))
	fmt.Fprintf(w, "  %-20s %-24s %10s %12s %6s %10s\n", "stage", "asks", "per frame", "budget", "batch", "GPUs")
	for j := range g.Steps {
		s := &g.Steps[j]
		asks := s.Model
		if asks == "" {
			asks = "hook " + s.Hook
		}
		if slices.Contains(unmeasured, s.Model) {
			fmt.Fprintf(w, "  %-20s %-24s %10.3g %12s %6s %10s\n", s.Name, asks, g.FanOut(j), "–", "–", "–")
			continue
		}
		fmt.Fprintf(w, "  %-20s %-24s %10.3g %12v %6d %10.4f\n", s.Name, asks, g.FanOut(j), budgets.Budget[j].Round(10*time.Microsecond), budgets.Batch[j], budgets.Cost[j])
	}
	if len(unmeasured) > 0 {
		fmt.Fprintf(w, "  no latency is stored of %s: run downbeat profile -models %s; until then their stages count as taking no time\n", strings.Join(unmeasured, ", "), c.dirs)
	}
	fmt.Fprintln(w)
	return c.drawGraph(g, budgets)
}

// unmeasuredModels returns the models of an application for which the repository has no profile, by name.
func unmeasuredModels(r *repo.Repository, g *app.Graph) (names []string) {
	for _, s := range g.Steps {
		if s.Model != "" && r.Profile(s.Model, s.Version) == nil {
			names = append(names, s.Model)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (c *applicationCheck) drawGraph(g *app.Graph, budgets plan.StageBudgets) error {
	if c.draw == "" {
		return nil
	}

	if err := os.MkdirAll(c.draw, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(c.draw, g.Name+".svg"))
	if err != nil {
		return err
	}
	return errors.Join(g.Draw(f, budgets, math.Round(c.rate*1000)/1000), f.Close())
}

func inputsOf(all []app.Tensor) string {
	var text []string
	for _, t := range all {
		text = append(text, describeTensor(&t.Tensor, 0))
	}
	return "takes " + strings.Join(text, ", ")
}

func outputsOf(g *app.Graph) string {
	var text []string
	for i, o := range g.Outputs {
		t := g.Tensors[g.Answer[i]].Tensor

		// A list's length is unknown until a frame runs, so print its upper bound.
		most := 0
		if g.Lists[g.Answer[i]] != app.Single {
			most = g.Elements(g.Answer[i])
		}
		t.Name = o.Name
		text = append(text, describeTensor(&t, most))
	}
	return "gives " + strings.Join(text, ", ")
}

// describeTensor describes a tensor on one line. A list gets its largest length in front.
func describeTensor(t *model.Tensor, most int) string {
	text := fmt.Sprintf("%s %s%v", t.Name, t.Datatype, t.Shape)
	if most > 0 {
		text = fmt.Sprintf("%s (up to %d)", text, most)
	}
	return text
}
