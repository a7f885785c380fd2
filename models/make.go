package models

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/backend/train"
	"downbeat.dev/core/repo"
	"downbeat.dev/models/scene"
)

// Options are the options of Make.
type Options struct {
	Dir      string // the repository to write into
	Only     string // names of models, separated by commas; "": all
	Seed     uint64
	Exits    bool    // train only the heads of early exits, for the models in Dir
	Parallel int     // models trained in parallel, one core each
	Effort   float64 // factor on the number of steps; 1 is the recipe's
	HeldOut  int     // images for measuring accuracy; 0: the usual number
	Library  string  // ONNX Runtime; "": as in ort.Library
	Report   func(line string)
}

// Check returns an error if the options name a model without a recipe or an effort out of its range.
func (o Options) Check() error {
	if !(o.Effort > 0 && o.Effort <= 100) {
		return fmt.Errorf("effort: %v: want above 0 to 100", o.Effort)
	}
	_, err := chooseRecipes(o.Only)
	return err
}

// Make trains the chosen models and writes them, and README.md about all models, into the repository.
func Make(ctx context.Context, o Options) error {
	if err := o.Check(); err != nil {
		return err
	}
	chosen, err := chooseRecipes(o.Only)
	if err != nil {
		return err
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	makeOne := Recipe.makeModel
	if o.Exits {
		makeOne = Recipe.addExits
		chosen = slices.DeleteFunc(chosen, func(r Recipe) bool { return len(r.Structure().Exits) == 0 })
	}

	queue := make(chan Recipe, len(chosen))
	for i := len(chosen) - 1; i >= 0; i-- { // the large ones take longest and come last in a family
		queue <- chosen[i]
	}
	close(queue)

	var wg sync.WaitGroup
	var mu sync.Mutex // guards o.Report

	// Recipes report from several goroutines, but the caller's function expects one.
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
				if err := makeOne(r, ctx, o); err != nil {
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

// makeModel trains, measures and writes one model and its exits.
func (r Recipe) makeModel(ctx context.Context, o Options) error {
	start := time.Now()
	weights, err := r.trainWeights(ctx, o)
	if err == nil {
		weights, err = r.trainExits(ctx, o, weights)
	}
	if err != nil {
		return err
	}
	return r.writeModel(ctx, o, weights, start)
}

// writeModel measures and writes a model whose training began at start.
func (r Recipe) writeModel(ctx context.Context, o Options, weights []float32, start time.Time) error {
	m, err := r.Structure().Serving(weights)
	if err != nil {
		return err
	}
	path, err := r.writeFile(o.Dir, m.Marshal())
	if err != nil {
		return err
	}

	// Measure the written file: read each graph back.
	for k := range len(r.Structure().Exits) + 1 {
		part, err := onnx.ReadPart(&repo.Model{Name: r.exitOrName(k), ONNXPath: path, ExitStage: k})
		if err != nil {
			return err
		}
		accuracy, err := r.Evaluate(ctx, part.Model, Exam{Seed: o.Seed, Images: o.HeldOut, Library: o.Library})
		if err != nil {
			return err
		}
		if err := r.writeModelConfig(o.Dir, k, accuracy, o.Seed); err != nil {
			return err
		}
		o.Report(fmt.Sprintf("%-15s accuracy %.4f, %d bytes, %v", r.exitOrName(k), accuracy, len(part.Marshal()), time.Since(start).Round(time.Second)))
	}
	return nil
}

// trainWeights runs the recipe's steps: a short warm-up, then a learning rate that falls to 0 along a cosine.
func (r Recipe) trainWeights(ctx context.Context, o Options) ([]float32, error) {
	t, err := train.New(r.net(), train.Options{Batch: r.Batch, Seed: o.Seed, Library: o.Library})
	if err != nil {
		return nil, err
	}
	defer t.Close()
	return r.runSteps(ctx, o, t, lesson{what: r.Name(), steps: max(int(float64(r.Steps)*o.Effort), 1), rate: r.Rate})
}

// lesson is a number of training steps.
type lesson struct {
	what  string // for people
	steps int
	first int // index of its first batch, in the sequence of the seed
	rate  float64
}

// runSteps trains and returns the weights.
func (r Recipe) runSteps(ctx context.Context, o Options, t *train.Trainer, l lesson) ([]float32, error) {
	net, size, paint := r.net(), 0, NewPainter()
	size = int(net.H*net.W) * 3
	images, targets := make([]byte, r.Batch*size), make([]float32, r.Batch*net.TargetLen())
	var mean float64

	for i := range l.steps {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}

		// Every step draws new images: no image is used twice.
		for k := range r.Batch {
			g := scene.Seeded(trainingSeed(o.Seed), uint64((l.first+i)*r.Batch+k))
			r.data.drawSample(paint, g, scene.Mixed(g), images[k*size:(k+1)*size], targets[k*net.TargetLen():(k+1)*net.TargetLen()])
		}

		// The learning rate warms up over a hundred steps, then falls along a cosine.
		rate := l.rate * min(float64(i+1)/100, 1) * (1 + math.Cos(math.Pi*float64(i)/float64(l.steps))) / 2
		loss, err := t.Step(images, targets, rate)
		if err != nil {
			return nil, err
		}

		// Report a moving mean over a hundred steps, since the loss of one batch varies.
		mean += (float64(loss) - mean) / float64(min(i+1, 100))
		if (i+1)%500 == 0 || i+1 == l.steps {
			o.Report(fmt.Sprintf("%-11s step %d of %d, loss %.4f", l.what, i+1, l.steps, mean))
		}
	}

	// Copy: the trainer's vector is freed with the trainer.
	return append([]float32(nil), t.Weights()...), nil
}

// writeFile stores the file of version 1.
func (r Recipe) writeFile(dir string, file []byte) (path string, err error) {
	dir = filepath.Join(dir, r.Name(), "1")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path = filepath.Join(dir, "model.onnx")
	return path, repo.WriteFile(path, file)
}

// writeModelConfig writes the configuration of the recipe's model, or of its exit k from 1, beside the file.
func (r Recipe) writeModelConfig(dir string, k int, accuracy float64, seed uint64) error {
	dir = filepath.Join(dir, r.exitOrName(k))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := repo.WriteFile(filepath.Join(dir, "labels.txt"), []byte(strings.Join(r.data.labels(), "\n")+"\n")); err != nil {
		return err
	}
	return repo.WriteFile(filepath.Join(dir, "config.pbtxt"), []byte(r.writeConfig(k, accuracy, seed)))
}
