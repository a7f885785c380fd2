package observe_test

import (
	"context"
	"fmt"
	"testing"

	"downbeat.dev/bench/stage"
	"downbeat.dev/core/observe"
)

// BenchmarkReaders measures the cost of one reader of several that walks over the engine's locks itself, asks for a
// fresh look, or takes the latest one. walks/op is the number of walks over all locks for each reading.
func BenchmarkReaders(b *testing.B) {
	models := map[string]string{}
	for i := range 100 {
		models[fmt.Sprint("model", i)] = `platform: "emulated" max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
parameters { key: "alpha_ms" value { string_value: "0.1" } } parameters { key: "beta_ms" value { string_value: "1" } }
parameters { key: "slo_ms" value { string_value: "1000" } }`
	}
	s, err := stage.Open(context.Background(), models, 4)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	}()

	c := &observe.Counted{Engine: s.Engine}
	w := observe.Watch(c)
	defer w.Close()
	for _, way := range []struct {
		name string
		read func()
	}{
		{"each walks", func() { c.Stats() }},
		{"fresh", func() { w.Fresh() }},
		{"latest", func() { w.Latest() }},
	} {
		b.Run(way.name, func(b *testing.B) {
			c.Walks.Store(0)
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					way.read()
				}
			})
			b.ReportMetric(float64(c.Walks.Load())/float64(b.N), "walks/op")
		})
	}
}
