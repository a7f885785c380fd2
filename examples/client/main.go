// Command client sends several concurrent inferences to a scheduler in another process (start one on this host with
// "downbeat serve -models examples/models -emulate 1") and prints how each ended.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"time"

	"downbeat.dev/frontend"
)

func main() {
	scheduler := flag.String("scheduler", "127.0.0.1:7070", "address of the scheduler")
	model := flag.String("model", "classifier", "model to ask")
	deadline := flag.Duration("deadline", 50*time.Millisecond, "deadline of each request")
	floor := flag.Float64("floor", 0, "least accuracy of an answer, 0 to 1, for a family of variants")
	n := flag.Int("n", 8, "requests")
	flag.Parse()
	if err := run(*scheduler, *model, *deadline, *floor, *n); err != nil {
		log.Fatal(err)
	}
}

func run(scheduler, model string, deadline time.Duration, floor float64, n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	client, err := frontend.Dial(ctx, frontend.Options{Scheduler: scheduler, Name: "example"})
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := client.AwaitModel(ctx, model); err != nil {
		return err
	}

	// Use one registered buffer per request under way; a program reuses them for later requests.
	calls := make([]frontend.Call, n)
	for i := range calls {
		input, err := client.NewInput(model)
		if err != nil {
			return err
		}
		defer input.Free()
		clear(input.Bytes())
		calls[i].Request = frontend.Request{Model: model, Input: input, AccuracyFloor: floor}
	}

	ctx, cancel = context.WithTimeout(context.Background(), deadline)
	defer cancel()
	client.DoAll(ctx, calls)
	for i := range calls {
		fmt.Println(i, describeEnd(&calls[i]))
		calls[i].Result.Release()
	}
	return nil
}

// describeEnd shows how a program distinguishes the ends of a request.
func describeEnd(c *frontend.Call) string {
	switch {
	case c.Err == nil:
		// Any variant may answer a request for a family. The accuracy of a model that states none is 0.
		r := &c.Result
		return fmt.Sprintf("answered by %s version %s of accuracy %v after %v", r.Model, r.Version, r.Accuracy, r.Elapsed.Round(time.Microsecond))
	case errors.Is(c.Err, frontend.ErrDropped):
		return "too late: no batch could meet the deadline"
	case errors.Is(c.Err, frontend.ErrRejected):
		return "refused: " + c.Err.Error()
	case errors.Is(c.Err, frontend.ErrUnavailable):
		return "no scheduler could be reached: try another one"
	}
	return c.Err.Error()
}
