package gpu

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/cuda"
)

func (o Options) checkAll(ctx context.Context, dev *cuda.Device, r *report) error {
	// Full-size networks are too large for the emulated device, which computes in Go.
	cases := append(Operators(), Networks()...)
	if !o.Emulated && !o.Small {
		cases = append(cases, FullNetworks()...)
	}

	if o.Models != "" {
		more, err := fileCases(o.Models)
		if err != nil {
			return err
		}
		cases = append(cases, more...)
	}

	match, err := regexp.Compile(o.Match)
	if err != nil {
		return fmt.Errorf("cases to match: %w", err)
	}

	cases = slices.DeleteFunc(cases, func(k Case) bool { return !match.MatchString(k.Name) })

	c := CheckConfig{Library: o.Library, Seed: o.Seed, Capture: true, Timeout: time.Minute, Tune: o.Tune, Libraries: o.Libraries}
	if c.Precisions, err = o.parsePrecisions(); err != nil {
		return err
	}
	return Check(ctx, dev, c, cases, func(k Checked) { r.Checks = append(r.Checks, k) })
}

// fileCases makes a case of every ONNX file below a folder.
func fileCases(folder string) (all []Case, err error) {
	err = filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".onnx" {
			return err
		}
		m, err := onnx.Read(path)
		if err != nil {
			return err
		}

		rel, _ := filepath.Rel(folder, path)
		all = append(all, Case{Name: rel, Model: m, Batches: []int{4, 16}, IntMax: 256}) // the norm of a row of three classes is not meaningful
		return nil
	})
	return all, err
}
