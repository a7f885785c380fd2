//go:build linux

package downbeat_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"downbeat.dev"
)

// A scheduler, a backend with an emulated GPU and a client in one process.
func ExampleStart() {
	config := downbeat.Default()
	config.Models = "examples/models"
	config.Emulate = 1
	system, err := downbeat.Start(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	defer system.Close()

	input, err := system.Client().NewInput("classifier")
	if err != nil {
		log.Fatal(err)
	}
	defer input.Free()
	if err := input.Tensor("features").SetFloat32s([]float32{0.1, 0.2, 0.3, 0.4}); err != nil {
		log.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // the request's deadline
	defer cancel()
	result, err := system.Client().Infer(ctx, "classifier", input)
	if err != nil {
		log.Fatal(err)
	}
	defer result.Release()
	scores, err := result.Output("scores").Float32s()
	fmt.Println(len(scores), "scores", err)
	// Output: 3 scores <nil>
}
