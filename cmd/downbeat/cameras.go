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
	// camerasUsual are shown where the demo is long enough for people to watch.
	camerasUsual  = 8
	camerasNeed   = 10 * time.Second // of the demo's load
	cameraRate    = 6                // frames/s
	cameraLatency = 200 * time.Millisecond
	cameraSpan    = 5 * time.Second
	streetsDrawn  = 16 // rendered ahead, shared by all cameras
)

// showCameras opens sessions of an application, sends each its frames for a while, and prints what they were promised and
// got. A camera that is refused says why.
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
		// A camera that is refused is told and left out: the others go on.
		if err != nil {
			fmt.Fprintf(out, "camera %d: %v\n", i+1, err)
			continue
		}
		defer s.Close()
		streams = append(streams, s)
		wait.Go(func() { runCamera(ctx, s, streets[i%len(streets):]) })
	}

	wait.Wait()

	// The table is that of downbeat sessions, while they are open.
	status := traffic.Status()
	if len(streams) == 0 {
		return nil
	}
	return printSessions(out, &app.Status{Applications: []app.ApplicationStatus{status}}, 1)
}

// runCamera sends a session's frames, each when it is due, whether or not the one before has been answered.
func runCamera(ctx context.Context, s *app.Stream, streets [][]byte) {
	var wait sync.WaitGroup
	defer wait.Wait()
	const period = time.Second / cameraRate

	// Frames begin at the phase that admission chose for the session.
	begin := s.NextFrame(time.Now())
	for k := range int(cameraSpan / period) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(begin.Add(time.Duration(k) * period))):
		}

		// A frame does not wait for the one before: a camera takes pictures at its rate whatever happens.
		wait.Go(func() {
			if r, err := s.Run(ctx, app.Frame{Inputs: [][]byte{streets[k%len(streets)]}}); err == nil {
				r.Release()
			}
		})
	}
}

// drawStreets renders what the cameras see.
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
