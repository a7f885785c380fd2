//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"downbeat.dev/frontend/app"
	"downbeat.dev/models"
)

// The demo's cameras.
const (
	camerasMost = 64
	// camerasUsual cameras run if the demo is long enough to watch.
	camerasUsual  = 8
	camerasNeed   = 10 * time.Second // shortest demo load with cameras
	cameraRate    = 6                // frames/s
	cameraLatency = 200 * time.Millisecond
	cameraSpan    = 5 * time.Second
	streetsDrawn  = 16 // scenes rendered in advance and shared by all cameras
)

// showCameras opens one session per camera on an application, sends frames for cameraSpan, and prints the promised
// and the achieved rates. It prints the reason for each camera that admission refuses.
func showCameras(ctx context.Context, out io.Writer, traffic *app.App, cameras int) error {
	streets, err := drawStreets()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%d cameras on application traffic, %v frames/s each within %v, for %v:\n", cameras, cameraRate, cameraLatency, cameraSpan)

	var wait sync.WaitGroup
	var streams []*app.Stream
	for i := range cameras {
		s, err := traffic.Open(ctx, app.Session{Rate: cameraRate, Latency: cameraLatency, Name: fmt.Sprintf("camera %d", i+1), Triggered: true})
		// Print the refusal and go on with the other cameras.
		if err != nil {
			fmt.Fprintf(out, "camera %d: %v\n", i+1, err)
			continue
		}
		defer s.Close()
		streams = append(streams, s)
		wait.Go(func() { runCamera(ctx, s, streets[i%len(streets):]) })
	}

	wait.Wait()

	// Print the table of downbeat sessions while the sessions are still open.
	status := traffic.Status()
	if len(streams) == 0 {
		return nil
	}
	return printSessions(out, &app.Status{Applications: []app.ApplicationStatus{status}}, 1)
}

// runCamera sends each frame when it is due, whether or not the previous one has been answered.
func runCamera(ctx context.Context, s *app.Stream, streets [][]byte) {
	var wait sync.WaitGroup
	defer wait.Wait()
	const period = time.Second / cameraRate

	// Admission chose the phase at which the session's frames begin.
	begin := s.NextFrame(time.Now())
	for k := range int(cameraSpan / period) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(begin.Add(time.Duration(k) * period))):
		}

		// Do not wait for the previous frame: a camera takes pictures at its rate regardless.
		wait.Go(func() {
			if r, err := s.Run(ctx, app.Frame{Inputs: [][]byte{streets[k%len(streets)]}}); err == nil {
				r.Release()
			}
		})
	}
}

// drawStreets renders the scenes that the cameras send.
func drawStreets() ([][]byte, error) {
	recipe, ok := models.Find("detector-m")

	if !ok {
		return nil, fmt.Errorf("model detector-m: no recipe")
	}

	painter := models.NewPainter()
	streets := make([][]byte, streetsDrawn)
	for i := range streets {
		streets[i] = make([]byte, 96*96*3)
		if _, err := recipe.Draw(painter, 7, uint64(i), nil, streets[i]); err != nil {
			return nil, err
		}
	}
	return streets, nil
}
