package models

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/backend/train"
	"downbeat.dev/core/repo"
	"downbeat.dev/models/scene"
)

// Options of Make.
type Options struct {
	Dir      string // the repository to write into
	Only     string // names of models, separated by commas; "": all
	Seed     uint64
	Parallel int     // models trained at the same time, one core each
	Effort   float64 // multiplies the number of steps; 1 is the recipe's
	HeldOut  int     // images that accuracy is measured on; 0: the usual number
	Library  string  // ONNX Runtime; "": as ort.Library says
	Report   func(line string)
}

// Make trains the chosen models and writes them, and README.md over all, into the repository.
func Make(ctx context.Context, o Options) error {
	chosen, err := chooseRecipes(o.Only)
	if err != nil {
		return err
	}
	if !(o.Effort > 0 && o.Effort <= 100) {
		return fmt.Errorf("effort: %v: want above 0 to 100", o.Effort)
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	queue := make(chan Recipe, len(chosen))
	for i := len(chosen) - 1; i >= 0; i-- { // the large ones take longest and come last in a family
		queue <- chosen[i]
	}
	close(queue)

	var wg sync.WaitGroup
	var mu sync.Mutex // guards o.Report

	// Recipes report from several goroutines, the caller's function expects one.
	report := o.Report
	o.Report = func(line string) {
		mu.Lock()
		defer mu.Unlock()
		report(line)
	}

	for range max(o.Parallel, 1) {
		wg.Go(func() {
			for r := range queue {
				if ctx.Err() != nil {
					return
				}
				if err := r.makeModel(ctx, o); err != nil {
					cancel(fmt.Errorf("make %s: %w", r.Name(), err))
				}
			}
		})
	}

	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return WriteReadme(ctx, o.Dir, o.HeldOut, o.Library)
}

func chooseRecipes(only string) ([]Recipe, error) {
	if only == "" {
		return Recipes(), nil
	}

	var chosen []Recipe
	for _, name := range strings.Split(only, ",") {
		r, ok := Find(name)
		if !ok {
			var names []string
			for _, r := range Recipes() {
				names = append(names, r.Name())
			}
			return nil, fmt.Errorf("no recipe %q; there are %s", name, strings.Join(names, ", "))
		}
		chosen = append(chosen, r)
	}
	return chosen, nil
}

// makeModel trains, measures and writes one model.
func (r Recipe) makeModel(ctx context.Context, o Options) error {
	start := time.Now()
	weights, err := r.trainWeights(ctx, o)
	if err != nil {
		return err
	}

	m, err := r.net().Serving(weights)
	if err != nil {
		return err
	}

	// What is judged is what is written: the graph is read back from its file's bytes.
	file := m.Marshal()
	if m, err = onnx.Unmarshal(file); err != nil {
		return err
	}

	accuracy, err := r.Evaluate(ctx, m, Exam{Seed: o.Seed, Images: o.HeldOut, Library: o.Library})
	if err != nil {
		return err
	}

	if err := r.writeVersion(o.Dir, file, accuracy, o.Seed); err != nil {
		return err
	}
	o.Report(fmt.Sprintf("%-11s accuracy %.4f, %d bytes, %v", r.Name(), accuracy, len(file), time.Since(start).Round(time.Second)))
	return nil
}

// trainWeights runs the recipe's steps: a short warm-up, then a rate that falls to 0 along a cosine.
func (r Recipe) trainWeights(ctx context.Context, o Options) ([]float32, error) {
	net := r.net()
	t, err := train.New(net, train.Options{Batch: r.Batch, Seed: o.Seed, Library: o.Library})
	if err != nil {
		return nil, err
	}
	defer t.Close()

	steps := max(int(float64(r.Steps)*o.Effort), 1)
	paint, size := NewPainter(), int(net.H*net.W)*3
	images, targets := make([]byte, r.Batch*size), make([]float32, r.Batch*net.TargetLen())
	var mean float64

	for i := range steps {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}

		// Every step draws images of its own: no image is seen twice.
		for k := range r.Batch {
			g := scene.Seeded(trainingSeed(o.Seed), uint64(i*r.Batch+k))
			r.data.drawSample(paint, g, scene.Mixed(g), images[k*size:(k+1)*size], targets[k*net.TargetLen():(k+1)*net.TargetLen()])
		}

		// The rate warms up over a hundred steps, then falls along a cosine.
		rate := r.Rate * min(float64(i+1)/100, 1) * (1 + math.Cos(math.Pi*float64(i)/float64(steps))) / 2
		loss, err := t.Step(images, targets, rate)
		if err != nil {
			return nil, err
		}

		// A moving mean of a hundred steps: the loss of one batch says little.
		mean += (float64(loss) - mean) / float64(min(i+1, 100))
		if (i+1)%500 == 0 || i+1 == steps {
			o.Report(fmt.Sprintf("%-11s step %d of %d, loss %.4f", r.Name(), i+1, steps, mean))
		}
	}

	// The trainer's vector goes with the trainer.
	return append([]float32(nil), t.Weights()...), nil
}

// writeVersion stores version 1 of the model.
func (r Recipe) writeVersion(dir string, file []byte, accuracy float64, seed uint64) error {
	dir = filepath.Join(dir, r.Name())
	if err := os.MkdirAll(filepath.Join(dir, "1"), 0o755); err != nil {
		return err
	}
	if err := repo.WriteFile(filepath.Join(dir, "1", "model.onnx"), file); err != nil {
		return err
	}
	if err := repo.WriteFile(filepath.Join(dir, "labels.txt"), []byte(strings.Join(r.data.labels(), "\n")+"\n")); err != nil {
		return err
	}
	return repo.WriteFile(filepath.Join(dir, "config.pbtxt"), []byte(r.writeConfig(accuracy, seed)))
}
