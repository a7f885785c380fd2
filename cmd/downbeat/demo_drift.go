//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev"
	"downbeat.dev/backend/learn"
	"downbeat.dev/backend/train"
	"downbeat.dev/deploy"
	"downbeat.dev/frontend"
	"downbeat.dev/models"
	"downbeat.dev/models/scene"
)

// The demo's model, its samples and its training steps.
const (
	driftModel   = "vehicle-s"
	driftInitial = 400  // samples of the day that the learner starts with
	driftPool    = 2048 // rendered pictures of each light that train the reference weights
	driftTests   = 1024 // other pictures, to measure accuracy
	driftSteps   = 200  // training steps on the day, before serving starts
	driftRetrain = 500  // training steps on day and night, for the reference weights
	driftDay     = 8 * time.Second
	driftEvery   = 2 * time.Second // interval of the table's lines
	driftBatch   = 32
	driftRate    = 1e-3
)

// nightStreet is darker and noisier than any scene in the models' training data.
func nightStreet() *scene.Conditions {
	c := scene.Night()
	c.Light, c.Rain, c.Noise, c.Occlusion = 0.15, 0.5, 0.05, 0.35
	return &c
}

// driftDemo is the state of the drift demonstration.
type driftDemo struct {
	recipe           models.Recipe
	day, night       []learn.Sample // training samples of the reference weights; requests use other pictures
	dayTest          []learn.Sample
	nightTest        []learn.Sample
	first            []float32 // weights trained on the day only
	without, retrain float64   // accuracy at night of the first weights and of fully retrained weights
	withoutDay       float64   // accuracy of the first weights on the day
	library          string
	isNight          atomic.Bool
	asked, bad       atomic.Int64
	answered, right  atomic.Int64
	truths           sync.Mutex
	lessons          []frontend.LabelledSample // guarded by truths
	reasons          map[string]int            // counts of unanswered requests by reason; guarded by truths
}

func runDemoDrift(ctx context.Context, args []string) error {
	span, rate := 60*time.Second, 0.0
	c, rest, err := deploy.Parse("demo drift", args, func(fs *flag.FlagSet) {
		fs.DurationVar(&span, "duration", span, "length of the night")
		fs.Float64Var(&rate, "rate", 0, "`requests` per second; 0: 30 % of the executors' capacity without batching, at most 400")
	})
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return usageErrorf("demo drift: unexpected %q: only flags are allowed", rest[0])
	case span < driftEvery || span > time.Hour || !(rate >= 0 && rate <= 1e5):
		return usageErrorf("demo drift: duration %v, rate %v: want 2s to 1h and 0 to 100000", span, rate)
	case strings.Contains(c.Models, ","):
		return usageErrorf("demo drift: models %q: want one directory, the one with %s", c.Models, driftModel)
	}

	// Keep learnt versions out of the tree's repository.
	dir, err := os.MkdirTemp("", "downbeat-drift-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d := &driftDemo{}
	fmt.Printf("rendering streets, and training %s of %s on the day ...\n", driftModel, c.Models)
	if err := d.prepare(ctx, c.Models, dir); err != nil {
		return err
	}

	if c.LogLevel == deploy.Default().LogLevel {
		c.LogLevel = "warn"
	}
	c.Listen, c.Models = "", dir
	s, err := downbeat.Start(ctx, downbeat.Config{Config: c, Roles: downbeat.Scheduler | downbeat.Backend | downbeat.Gateway,
		FreePorts: true, Log: os.Stderr, Version: buildVersion()})
	if err != nil {
		return err
	}

	fmt.Printf("the page: %s\n\n", s.PageURL())
	if rate == 0 {
		rate = min(sustainableRate(s, demoShare), 400)
	}

	return errors.Join(d.show(ctx, os.Stdout, s, span, rate), s.Close())
}

// prepare renders the streets and makes a repository whose model is trained on the day only and allows training.
func (d *driftDemo) prepare(ctx context.Context, from, dir string) (err error) {
	d.recipe, _ = models.Find(driftModel)

	// Rendering takes long, so a directory without the model is reported first.
	_, start, err := learn.OpenStore(from, d.recipe.Net()).Newest()
	if err != nil {
		return err
	}

	paint := models.NewPainter()
	day := scene.Day()
	for _, x := range []struct {
		list  *[]learn.Sample
		n     int
		light *scene.Conditions
	}{{&d.day, driftPool, &day}, {&d.night, driftPool, nightStreet()}, {&d.dayTest, driftTests, &day}, {&d.nightTest, driftTests, nightStreet()}} {
		for i := range x.n {
			one, err := d.draw(paint, uint64(x.n), i, x.light)
			if err != nil || ctx.Err() != nil {
				return errors.Join(err, ctx.Err())
			}
			*x.list = append(*x.list, one)
		}
	}

	if d.first, err = d.trainOn(start, d.day, nil, driftSteps); err != nil {
		return err
	}
	retrained, err := d.trainOn(d.first, d.night, d.day, driftRetrain)
	if err != nil {
		return err
	}

	if d.without, err = learn.Accuracy(d.recipe.Net(), d.first, d.nightTest, d.library); err != nil {
		return err
	}

	if d.withoutDay, err = learn.Accuracy(d.recipe.Net(), d.first, d.dayTest, d.library); err != nil {
		return err
	}

	if d.retrain, err = learn.Accuracy(d.recipe.Net(), retrained, d.nightTest, d.library); err != nil {
		return err
	}

	return d.writeRepository(from, dir)
}

// draw renders the picture with this series, number and light.
func (d *driftDemo) draw(paint *models.Painter, series uint64, number int, light *scene.Conditions) (learn.Sample, error) {
	h, w := d.recipe.Size()
	pixels := make([]byte, h*w*3)
	truth, err := d.recipe.Draw(paint, 4000+series+uint64(100*light.Light), uint64(number), light, pixels)
	return learn.Sample{Input: pixels, Class: truth.Class}, err
}

// trainOn continues training of weights on two kinds of samples.
func (d *driftDemo) trainOn(weights []float32, one, two []learn.Sample, steps int) ([]float32, error) {
	net := d.recipe.Net()
	t, err := train.New(net, train.Options{Batch: driftBatch, Weights: weights, Library: d.library})
	if err != nil {
		return nil, err
	}
	defer t.Close()

	classes := net.TargetLen()
	for step := range steps {
		// Every third batch is of the second kind, so that the model does not forget it.
		from := one
		if two != nil && step%3 == 2 {
			from = two
		}
		var images []byte
		targets := make([]float32, driftBatch*classes)
		for k := range driftBatch {
			s := from[(step*driftBatch+k)%len(from)]
			images = append(images, s.Input...)
			targets[k*classes+s.Class] = 1
		}
		rate := driftRate * (1 + math.Cos(math.Pi*float64(step)/float64(steps))) / 2
		if _, err := t.Step(images, targets, rate); err != nil {
			return nil, err
		}
	}

	return slices.Clone(t.Weights()), nil
}

// writeRepository writes the model with its first weights and declares it trainable.
func (d *driftDemo) writeRepository(from, dir string) error {
	to := filepath.Join(dir, driftModel)
	if err := os.CopyFS(to, os.DirFS(filepath.Join(from, driftModel))); err != nil {
		return err
	}

	// The model in the tree was trained on every light, so replace its weights by those of the day.
	m, err := d.recipe.Net().Serving(d.first)
	if err != nil {
		return err
	}

	if err := os.WriteFile(filepath.Join(to, "1", "model.onnx"), m.Marshal(), 0o644); err != nil {
		return err
	}
	about, err := learn.DescribeNet(d.recipe.Net())
	if err != nil {
		return err
	}

	// Frequent drift checks and small batches show learning within a minute.
	about.Period, about.Batch, about.Mirror = 5, 16, true
	return learn.WriteTraining(to, about, d.day[:driftInitial])
}

// teach sends the true classes to the learner four times a second.
func (d *driftDemo) teach(ctx context.Context, c *frontend.Client) {
	t := time.NewTicker(250 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		d.truths.Lock()
		lessons := d.lessons
		d.lessons = nil
		d.truths.Unlock()

		// Skip an interval without answers.
		if len(lessons) > 0 {
			_ = c.Teach(context.WithoutCancel(ctx), driftModel, lessons) // a lost message costs a few samples
		}
	}
}
