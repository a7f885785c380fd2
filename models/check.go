package models

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/core/repo"
)

// Check opens the repository in dir and compares every graph with its configuration. For models made here, it also
// measures the accuracy on n held-out images (0: the usual number; below 0: no measurement) and compares it with the
// accuracy in config.pbtxt. It writes a table and returns an error if any model is wrong.
func Check(ctx context.Context, out io.Writer, dir string, n int, library string) error {
	r, err := repo.Open(dir)
	if err != nil {
		return err
	}

	bad := len(r.Errors)
	if bad+len(r.Models) == 0 {
		return fmt.Errorf("check %s: no model in it", dir)
	}

	t := tabwriter.NewWriter(out, 2, 2, 2, ' ', 0)
	fmt.Fprintln(t, "model\tversion\tplatform\tSLO\tclaimed\tmeasured\tverdict")

	// List the models that could not be read first, so that the table names every directory.
	for _, e := range r.Errors {
		fmt.Fprintf(t, "%s\t\t\t\t\t\t%v\n", e.Model, e.Err)
	}

	for i := range r.Models {
		m := &r.Models[i]
		measured, err := checkModel(ctx, m, n, library)
		if ctx.Err() != nil {
			return ctx.Err()
		}

		verdict := "good"
		if err != nil {
			bad++
			verdict = err.Error()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%v\t%s\t%s\t%s\n", m.Name, m.Version, m.Platform, m.SLO, m.Config.Params["accuracy"], measured, verdict)
	}

	if err := t.Flush(); err != nil {
		return err
	}
	if bad > 0 {
		return fmt.Errorf("check %s: %d of %d models are wrong", dir, bad, len(r.Models)+len(r.Errors))
	}
	return nil
}

func checkModel(ctx context.Context, m *repo.Model, n int, library string) (measured string, err error) {
	if m.Platform != repo.PlatformONNX {
		return "", nil
	}

	// Check the file as a graph and against config.pbtxt before running it.
	g, err := onnx.ReadPart(m)
	if err != nil {
		return "", err
	}
	if err := g.Graph.Check(); err != nil {
		return "", err
	}
	if err := g.Graph.Match(m); err != nil {
		return "", err
	}

	// There are no scenes to measure models that were not made here.
	r, _, ok := FindExit(m.Name)
	seed, err := strconv.ParseUint(m.Config.Params["seed"], 10, 64)
	if !ok || err != nil || n < 0 {
		return "", nil // not made here
	}

	a, err := r.Evaluate(ctx, g.Model, Exam{Seed: seed, Images: n, Library: library})
	if err != nil {
		return "", err
	}

	// Allow a difference of 0.05: the claim was measured on other scenes.
	claimed, err := strconv.ParseFloat(m.Config.Params["accuracy"], 64)
	if err == nil && a < claimed-0.05 {
		err = fmt.Errorf("accuracy %.4f: config.pbtxt claims %.4f", a, claimed)
	}
	return fmt.Sprintf("%.4f", a), err
}
