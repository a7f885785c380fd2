package app_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"downbeat.dev/bench/usage"
	graph "downbeat.dev/core/app"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/app"
	"downbeat.dev/frontend/internal/echo"
	"downbeat.dev/rdma"
)

// BenchmarkOverhead compares stages in sequence with the same number of plain requests, alternately: the cost that
// the graph adds to a stage, as the median of rounds of 100 frames. added-cpu-ns/stage is time of the process on all
// processors, added-ns/stage is elapsed time.
func BenchmarkOverhead(b *testing.B) {
	node, err := rdma.Open(rdma.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer node.Close()
	addr, forget := echo.ListenInstant(node, info(7, "double"))
	defer forget()
	client, err := frontend.Dial(context.Background(), frontend.Options{Scheduler: addr})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()

	in, err := client.Buffer(4)
	if err != nil {
		b.Fatal(err)
	}
	defer in.Free()
	askPlainly := func(b *testing.B) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		r, err := client.Infer(ctx, "double", in)
		if err != nil {
			b.Fatal(err)
		}
		r.Release()
	}

	for _, n := range []int{1, 4, 16} {
		var stages []graph.Stage
		for i := range n {
			stages = append(stages, ask(fmt.Sprintf("s%d", i), "double", fmt.Sprintf("t%d", i), fmt.Sprintf("t%d", i+1)))
		}
		stages[0].Takes[0].Tensor = "in"
		g, err := graph.Resolve(application(fmt.Sprintf("t%d", n), stages...), catalog)
		if err != nil {
			b.Fatal(err)
		}
		a, err := app.New(client, g, app.Options{})
		if err != nil {
			b.Fatal(err)
		}
		defer a.Close()

		b.Run(fmt.Sprintf("stages=%d", n), func(b *testing.B) {
			frame := app.Frame{Inputs: [][]byte{make([]byte, 4)}}
			var passed, took []time.Duration
			for b.Loop() {
				wall, cpu := timed(func() {
					for range frames {
						r, err := a.Run(context.Background(), frame)
						if err != nil {
							b.Fatal(err)
						}
						r.Release()
					}
				})
				plainWall, plainCPU := timed(func() {
					for range frames * n {
						askPlainly(b)
					}
				})
				passed, took = append(passed, (wall-plainWall)/time.Duration(frames*n)), append(took, (cpu-plainCPU)/time.Duration(frames*n))
			}
			b.ReportMetric(float64(median(passed)), "added-ns/stage")
			b.ReportMetric(float64(median(took)), "added-cpu-ns/stage")
		})
	}
}

// frames is the number of frames between two turns of the plain requests.
const frames = 100

// timed runs f and returns the elapsed time and the time of the process on all processors.
func timed(f func()) (wall, cpu time.Duration) {
	began, before := time.Now(), usage.ProcessorTime()
	f()
	return time.Since(began), usage.ProcessorTime() - before
}

func median(all []time.Duration) time.Duration { return slices.Sorted(slices.Values(all))[len(all)/2] }
