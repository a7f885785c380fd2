// Command cameras sends the pictures of four cameras through an application: a detector finds people and vehicles,
// each is cut out, and two classifiers name them. Each camera is a session with a rate and a latency that the server
// promises to keep, or refuses. The server runs in the same process.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"sync"
	"time"

	"downbeat.dev"
	"downbeat.dev/frontend/app"
)

const (
	rate    = 6 // frames per second
	latency = 200 * time.Millisecond
)

func main() {
	models := flag.String("models", "../../models", "model repository with the application traffic")
	emulate := flag.Int("emulate", 0, "emulated GPUs; 0: ONNX Runtime on this host's processors")
	span := flag.Duration("for", 5*time.Second, "how long the cameras run")
	flag.Parse()
	if err := run(*models, *emulate, *span); err != nil {
		log.Fatal(err)
	}
}

func run(models string, emulate int, span time.Duration) error {
	config := downbeat.Default()
	config.Models, config.Emulate = models, emulate
	config.Roles = downbeat.Scheduler | downbeat.Backend | downbeat.Gateway // the gateway holds the applications
	config.HTTP, config.GRPC = "127.0.0.1:0", "127.0.0.1:0"
	system, err := downbeat.Start(context.Background(), config)
	if err != nil {
		return err
	}
	defer system.Close()
	traffic := system.Applications().App("traffic")
	if traffic == nil {
		return fmt.Errorf("no application traffic in %s", models)
	}

	var cameras sync.WaitGroup
	for i := range 4 {
		session, err := traffic.Open(context.Background(), app.Session{Rate: rate, Latency: latency, Name: fmt.Sprintf("camera %d", i+1)})
		var refused *app.RefusedError
		if errors.As(err, &refused) {
			fmt.Printf("camera %d is refused: %v\n", i+1, refused)
			continue
		}
		if err != nil {
			return err
		}
		cameras.Go(func() { watch(session, span) })
	}
	cameras.Wait()
	return nil
}

// watch sends a picture every sixth of a second and prints how the promise was kept.
func watch(session *app.Stream, span time.Duration) {
	defer session.Close()
	ticker := time.NewTicker(time.Second / rate)
	defer ticker.Stop()

	// Replace this by a real camera's pictures: 96 × 96 pixels of three bytes.
	picture := make([]byte, 96*96*3)
	for end := time.Now().Add(span); time.Now().Before(end); {
		<-ticker.C
		answer, err := session.Run(context.Background(), app.Frame{Inputs: [][]byte{picture}})
		if err != nil {
			fmt.Printf("%s: a frame without an answer: %v\n", session.Session().Name, err)
			continue
		}

		// The first output is the list of vehicles' boxes.
		_ = answer.Outputs[0]
		answer.Release()
	}
	s := session.Standing()
	fmt.Printf("%s: %d of %d frames within %v\n", session.Session().Name, s.InTime, s.Frames, latency)
}
