// Command embed runs a scheduler, a backend and a client in its own process, and sends one inference.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"time"

	"downbeat.dev"
)

func main() {
	models := flag.String("models", "../models", "model repository")
	deadline := flag.Duration("deadline", 100*time.Millisecond, "deadline of the request")
	flag.Parse()
	if err := run(*models, *deadline); err != nil {
		log.Fatal(err)
	}
}

func run(models string, deadline time.Duration) error {
	config := downbeat.Default()
	config.Models = models
	config.Emulate = 1 // an emulated GPU, so that the example needs neither a GPU nor ONNX Runtime
	system, err := downbeat.Start(context.Background(), config)
	if err != nil {
		return err
	}
	defer system.Close()

	client := system.Client()
	input, err := client.NewInput("classifier")
	if err != nil {
		return err
	}
	defer input.Free()
	if err := input.Tensor("features").SetFloat32s([]float32{0.1, 0.2, 0.3, 0.4}); err != nil {
		return err
	}

	// The context's deadline is the request's deadline.
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	result, err := client.Infer(ctx, "classifier", input)
	if err != nil {
		return err
	}
	scores, err := result.Output("scores").Float32s()
	if err != nil {
		return err
	}
	fmt.Printf("%d scores %v, %v before the deadline\n", len(scores), scores, result.Slack.Round(time.Millisecond))
	return nil
}
