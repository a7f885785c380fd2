//go:build !race

package frontend_test

import (
	"context"
	"testing"
	"time"

	"downbeat.dev/frontend"
	"downbeat.dev/frontend/internal/echo"
	"downbeat.dev/rdma"
)

func dialInstant(tb testing.TB) *frontend.Client {
	node, err := rdma.Open(rdma.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	addr, forget := echo.ListenInstant(node, double)
	c, err := frontend.Dial(context.Background(), frontend.Options{Scheduler: addr})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close(); node.Close(); forget() })
	return c
}

func TestInferAllocatesNothing(t *testing.T) {
	c := dialInstant(t)
	b := input(t, c, 1, 2, 3, 4)
	out := make([]byte, 4)
	deadline, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	for name, call := range map[string]func() (frontend.Result, error){
		"Infer":         func() (frontend.Result, error) { return c.Infer(context.Background(), "double", b) },
		"with deadline": func() (frontend.Result, error) { return c.Infer(deadline, "double", b) },
		"own output": func() (frontend.Result, error) {
			return c.Do(context.Background(), frontend.Request{Model: "double", Input: b, Output: out})
		},
	} {
		got := testing.AllocsPerRun(2000, func() {
			r, err := call()
			if err != nil {
				t.Fatal(err)
			}
			r.Release()
		})
		if got > 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
}

func BenchmarkInfer(b *testing.B) {
	c := dialInstant(b)
	in := input(b, c, 1, 2, 3, 4)
	b.ReportAllocs()
	for b.Loop() {
		r, err := c.Infer(context.Background(), "double", in)
		if err != nil {
			b.Fatal(err)
		}
		r.Release()
	}
}
