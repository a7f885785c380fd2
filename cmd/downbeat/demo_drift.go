//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
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
		fs.Float64Var(&rate, "rate", 0, "requests per second; 0: 30 % of the executors' capacity without batching, at most 400")
	})
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return fmt.Errorf("demo drift: unexpected %q: only flags are allowed", rest[0])
	case span < driftEvery || span > time.Hour || !(rate >= 0 && rate <= 1e5):
		return fmt.Errorf("demo drift: duration %v, rate %v: want 2s to 1h and 0 to 100000", span, rate)
	}

	// Keep learnt versions out of the tree's repository.
	dir, err := os.MkdirTemp("", "downbeat-drift-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d := &driftDemo{}
	fmt.Printf("rendering streets, and training %s on the day ...\n", driftModel)
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
		rate = min(sustainable(s, demoShare), 400)
	}

	return errors.Join(d.show(ctx, os.Stdout, s, span, rate), s.Close())
}

// prepare renders the streets and makes a repository whose model is trained on the day only and allows training.
func (d *driftDemo) prepare(ctx context.Context, from, dir string) (err error) {
	d.recipe, _ = models.Find(driftModel)
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

	_, start, err := learn.OpenStore(from, d.recipe.Net()).Newest()
	if err != nil {
		return err
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
	about.Period, about.Batch = 5, 16
	return learn.WriteTraining(to, about, d.day[:driftInitial])
}

// show runs the day and the night, and prints a line every two seconds.
func (d *driftDemo) show(ctx context.Context, out io.Writer, s *downbeat.System, span time.Duration, rate float64) error {
	ctx, cancel := context.WithTimeout(ctx, driftDay+span)
	defer cancel()
	fmt.Fprintf(out, "%.0f requests/s; at night the weights of the day get %.1f %% right, fully retrained weights %.1f %%\n\n", rate, 100*d.without, 100*d.retrain)
	fmt.Fprintln(out, "seconds  light  answers  bad %  right %  without learning %  version  spare steps  training steps")

	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	wait.Go(func() { d.askAll(ctx, s.Client(), rate) })
	wait.Go(func() { d.teach(ctx, s.Client()) })
	return d.printTable(ctx, out, s)
}

// askAll sends requests at a rate until ctx ends.
func (d *driftDemo) askAll(ctx context.Context, c *frontend.Client, rate float64) {
	var wait sync.WaitGroup
	defer wait.Wait()
	began, paint := time.Now(), models.NewPainter()
	for n := 0; ctx.Err() == nil; n++ {
		// Open loop: send an overdue request at once and wait for no answer.
		if ahead := time.Until(began.Add(time.Duration(float64(n) / rate * float64(time.Second)))); ahead > 0 {
			time.Sleep(ahead)
		}
		light := scene.Day()
		if d.isNight.Load() {
			light = *nightStreet()
		}
		one, err := d.draw(paint, 1<<32, n, &light) // every request has its own picture
		if err != nil {
			return
		}
		wait.Go(func() { d.askOne(c, one) })
	}
}

// askOne classifies a picture and keeps the true class for the learner.
func (d *driftDemo) askOne(c *frontend.Client, one learn.Sample) {
	// Until the call returns, the request counts only as asked: neither bad nor answered.
	d.asked.Add(1)
	class, err := classify(c, one.Input)
	switch {
	case err != nil:
		d.bad.Add(1)
		d.truths.Lock()
		if d.reasons == nil {
			d.reasons = map[string]int{}
		}
		d.reasons[err.Error()]++
		d.truths.Unlock()

	default:
		d.answered.Add(1)
		if class == one.Class {
			d.right.Add(1)
		}
	}

	d.truths.Lock()
	d.lessons = append(d.lessons, frontend.LabelledSample{Input: one.Input, Class: uint32(one.Class)})
	d.truths.Unlock()
}

// classify returns the model's class for a picture.
func classify(c *frontend.Client, pixels []byte) (class int, err error) {
	input, err := c.NewInput(driftModel)
	if err != nil {
		return 0, err
	}
	defer input.Free()
	if err := input.Tensor("image").SetBytes(pixels); err != nil {
		return 0, err
	}

	// The timeout equals the model's own SLO.
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	result, err := c.Infer(ctx, driftModel, input)
	if err != nil {
		return 0, err
	}
	defer result.Release()

	// The class is the one with the highest score.
	scores, err := result.Output("scores").Float32s()
	for i, s := range scores {
		if s > scores[class] {
			class = i
		}
	}

	return class, err
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

// printTable prints the table, and at the end the time at which the learner had recovered the accuracy that the night
// cost.
func (d *driftDemo) printTable(ctx context.Context, out io.Writer, s *downbeat.System) error {
	began, asked, bad, answered, right := time.Now(), int64(0), int64(0), int64(0), int64(0)
	recovered, best := -1.0, 0.0
	t := time.NewTicker(driftEvery)
	defer t.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			continue
		case <-t.C:
		}

		// Count what happened since the previous line.
		since := time.Since(began)
		nowAsked, nowBad, nowAnswered, nowRight := d.asked.Load(), d.bad.Load(), d.answered.Load(), d.right.Load()
		answers := nowAnswered - answered
		share := float64(nowRight-right) / float64(max(1, answers))

		// Recovered means within 1.5 points of fully retrained weights.
		night := d.isNight.Load()
		light, without := "day", d.withoutDay
		if night {
			light, without = "night", d.without
			best = max(best, share)
			if recovered < 0 && share >= d.retrain-0.015 {
				recovered = (since - driftDay).Seconds()
			}
		}

		version, counts := s.Learned(driftModel)
		fmt.Fprintf(out, "%7.0f  %5s  %7d  %5.2f  %7.1f  %18.1f  %7d  %11d  %14d\n", since.Seconds(), light, answers,
			100*float64(nowBad-bad)/float64(max(1, nowAsked-asked)), 100*share, 100*without, version, s.SpareSteps(), counts.Steps)

		// The light changes between two lines.
		asked, bad, answered, right = nowAsked, nowBad, nowAnswered, nowRight
		if since >= driftDay-driftEvery/2 {
			d.isNight.Store(true)
		}
	}

	// Print every reason for missing answers: there should be none.
	d.truths.Lock()
	for why, n := range d.reasons {
		fmt.Fprintf(out, "%d without an answer: %s\n", n, why)
	}
	d.truths.Unlock()
	_, err := fmt.Fprintf(out, "\ndrift: without=%.1f best=%.1f retrained=%.1f recovered_s=%.0f bad=%.2f\n", 100*d.without, 100*best, 100*d.retrain, recovered,
		100*float64(d.bad.Load())/float64(max(1, d.asked.Load())))
	return err
}
