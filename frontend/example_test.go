package frontend_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"downbeat.dev/bench/stage"
	"downbeat.dev/frontend"
)

// classifier is a model of four numbers in and two out, emulated at 1 ms per batch and 0.1 ms per
// request.
const classifier = `
platform: "emulated"
max_batch_size: 16
input [ { name: "features" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "scores" data_type: TYPE_FP32 dims: [ 2 ] } ]
parameters { key: "alpha_ms" value { string_value: "0.1" } }
parameters { key: "beta_ms" value { string_value: "1" } }
parameters { key: "slo_ms" value { string_value: "5000" } }
`

// connect dials a client. Here the scheduler and an emulated backend run in the same process; in a
// deployment, Options name the scheduler's address instead of a Link.
func connect() (*frontend.Client, func()) {
	system, err := stage.Open(context.Background(), map[string]string{"classifier": classifier}, 1)
	if err != nil {
		log.Fatal(err)
	}
	return system.Client, func() { _ = system.Close() }
}

// A request whose deadline is the model's SLO; a context's deadline would take its place.
func Example() {
	client, done := connect()
	defer done()

	in, err := client.NewInput("classifier")
	if err != nil {
		log.Fatal(err)
	}
	defer in.Free()
	if err := in.Tensor("features").SetFloat32s([]float32{0.1, 0.2, 0.3, 0.4}); err != nil {
		log.Fatal(err)
	}

	result, err := client.Infer(context.Background(), "classifier", in)
	if err != nil {
		log.Fatal(err)
	}
	defer result.Release() // result.Slack tells how early it was
	scores, err := result.Output("scores").Float32s()
	fmt.Println(len(scores), "scores", err)
	// Output: 2 scores <nil>
}

// What a request that cannot be served ends in.
func ExampleOutcomeError() {
	client, done := connect()
	defer done()

	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Microsecond) // the model takes 1.1 ms
	defer cancel()
	_, err := client.InferCopy(ctx, "classifier", make([]byte, 16))
	var outcome *frontend.OutcomeError
	switch {
	case errors.Is(err, frontend.ErrDropped), errors.Is(err, frontend.ErrRejected):
		fmt.Println("too late:", errors.Is(err, context.DeadlineExceeded))
	case errors.As(err, &outcome):
		fmt.Println(outcome.Reason)
	}
	// Output: too late: true
}

// Preprocessing that runs while the request already queues.
func ExampleClient_Do() {
	client, done := connect()
	defer done()

	in, err := client.Buffer(16)
	if err != nil {
		log.Fatal(err)
	}
	defer in.Free()
	result, err := client.Do(context.Background(), frontend.Request{
		Model: "classifier",
		Input: in,
		Prepare: func(input []byte) error { // decode an image, say
			clear(input)
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(result.Data), "bytes")
	// Output: 8 bytes
}
