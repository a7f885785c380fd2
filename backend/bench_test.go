package backend

import (
	"testing"
	"time"

	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// BenchmarkBatch measures the time that the backend adds to a batch: from Execute to Done, without the GPU's time.
func BenchmarkBatch(b *testing.B) {
	for _, provider := range []string{"local", "shm", "tcp"} {
		for _, rows := range []int{1, 16} {
			b.Run(provider+"/rows="+string(rune('0'+rows/10))+string(rune('0'+rows%10)), func(b *testing.B) {
				link := &counter{more: make(chan struct{}, 1)}
				r := newRig(b, rigOptions{alpha: time.Nanosecond, batchMax: 16, front: rdma.Config{Providers: []string{provider}}, link: link})
				e, _ := r.batch(1, rows)
				batch := []wire.Execute{e}
				b.ReportAllocs()
				for b.Loop() {
					r.Execute(batch)
					<-link.more
				}
				if n := link.failures.Load(); n > 0 {
					b.Fatalf("%d requests failed", n)
				}
			})
		}
	}
}
