package swarm

import "testing"

// BenchmarkCluster simulates seeds of the swarm, with their faults, through the engine.
func BenchmarkCluster(b *testing.B) {
	events := 0
	seed := uint64(0)
	for b.Loop() {
		seed++
		r, err := Run(Draw(seed))
		if err != nil {
			b.Fatal(err)
		}
		events += r.Events
	}
	b.ReportMetric(float64(events)/float64(b.N), "events/op")
}
