//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"downbeat.dev"
	"downbeat.dev/backend/learn"
	"downbeat.dev/bench/load"
	"downbeat.dev/frontend"
	"downbeat.dev/models"
	"downbeat.dev/models/scene"
)

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
	lesson := frontend.LabelledSample{Input: one.Input, Class: uint32(one.Class)}
	scores, version, err := classify(c, one.Input)
	switch {
	case err != nil:
		d.bad.Add(1)
		d.truths.Lock()
		if d.reasons == nil {
			d.reasons = map[string]int{}
		}
		d.reasons[load.Classify(err)]++
		d.truths.Unlock()

	default:
		d.answered.Add(1)
		said := learn.NewServed(0, scores, one.Class)
		lesson.Answered, lesson.Version, lesson.Sure = uint32(said.Class), version, said.Sure
		if said.Class == one.Class {
			d.right.Add(1)
		}
	}

	d.truths.Lock()
	d.lessons = append(d.lessons, lesson)
	d.truths.Unlock()
}

// classify returns the model's score of each class for a picture, and the version that answered.
func classify(c *frontend.Client, pixels []byte) (scores []float32, version string, err error) {
	input, err := c.NewInput(driftModel)
	if err != nil {
		return nil, "", err
	}
	defer input.Free()
	if err := input.Tensor("image").SetBytes(pixels); err != nil {
		return nil, "", err
	}

	// The timeout equals the model's own SLO.
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	result, err := c.Infer(ctx, driftModel, input)
	if err != nil {
		return nil, "", err
	}
	defer result.Release()

	// The result's memory is free after the return.
	all, err := result.Output("scores").Float32s()
	return slices.Clone(all), result.Version, err
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
	for _, why := range slices.Sorted(maps.Keys(d.reasons)) {
		fmt.Fprintf(out, "%d without an answer: %s\n", d.reasons[why], why)
	}
	d.truths.Unlock()
	_, err := fmt.Fprintf(out, "\ndrift: without=%.1f best=%.1f retrained=%.1f recovered_s=%.0f bad=%.2f\n", 100*d.without, 100*best, 100*d.retrain, recovered,
		100*float64(d.bad.Load())/float64(max(1, d.asked.Load())))
	return err
}
