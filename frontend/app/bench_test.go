package app_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	graph "downbeat.dev/core/app"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/app"
	"downbeat.dev/frontend/internal/echo"
	"downbeat.dev/rdma"
)

// BenchmarkOverhead compares stages behind each other with as many plain requests: ns/stage is what the graph adds.
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
	plain := time.Duration(0)
	b.Run("request", func(b *testing.B) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		for b.Loop() {
			r, err := client.Infer(ctx, "double", in)
			if err != nil {
				b.Fatal(err)
			}
			r.Release()
		}
		plain = b.Elapsed() / time.Duration(b.N)
	})

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
			for b.Loop() {
				r, err := a.Run(context.Background(), frame)
				if err != nil {
					b.Fatal(err)
				}
				r.Release()
			}
			each := b.Elapsed() / time.Duration(b.N*n)
			b.ReportMetric(float64(each-plain), "added-ns/stage")
		})
	}
}
