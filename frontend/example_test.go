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

// classifier takes four numbers and returns two. It is emulated: a batch takes 1 ms and 0.1 ms per request.
const classifier = `
platform: "emulated"
max_batch_size: 16
input [ { name: "features" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "scores" data_type: TYPE_FP32 dims: [ 2 ] } ]
parameters { key: "alpha_ms" value { string_value: "0.1" } }
parameters { key: "beta_ms" value { string_value: "1" } }
parameters { key: "slo_ms" value { string_value: "5000" } }
`

// connect dials a client. Here the scheduler and an emulated backend run in the same process. In a deployment, call
// frontend.Dial with the scheduler's address in its Options.
func connect() (*frontend.Client, func()) {
	system, err := stage.Open(context.Background(), map[string]string{"classifier": classifier}, 1)
	if err != nil {
		log.Fatal(err)
	}
	return system.Client, func() { _ = system.Close() }
}

// This request's deadline is the model's SLO, because its context has none.
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

// A request that cannot be served in time ends with an OutcomeError, which says why.
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

// Prepare fills the input while the request is on its way: the scheduler plans with the time at which the input will be
// there.
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

		PrepareTime: 5 * time.Millisecond, // without it the client learns the time, and sends the first request after its hook
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
