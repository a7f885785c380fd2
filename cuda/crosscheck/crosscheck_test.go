//go:build cuda && gorgonia && linux && cgo

package crosscheck

import (
	"context"
	"testing"
	"time"

	"downbeat.dev/cuda"
)

func TestBothPackagesSeeTheSameDevice(t *testing.T) {
	b, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := b.Check(ctx); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// BenchmarkHundredLaunches makes a hundred launches: one crossing here, a hundred crossings there. On the emulated
// driver a launch runs at once, so the difference is the cost of enqueueing.
func BenchmarkHundredLaunches(bm *testing.B) {
	b, err := Open()
	if err != nil {
		bm.Fatal(err)
	}
	defer b.Close()
	var s cuda.Submission
	bm.Run("cuda", func(bm *testing.B) {
		bm.ReportAllocs()
		for bm.Loop() {
			s.Reset()
			for range 100 {
				b.Add(&s)
			}
			if err := b.Ours.Submit(&s); err != nil {
				bm.Fatal(err)
			}
		}
	})
	bm.Run("gorgonia", func(bm *testing.B) {
		bm.ReportAllocs()
		for bm.Loop() {
			for range 100 {
				if err := b.LaunchTheirs(); err != nil {
					bm.Fatal(err)
				}
			}
		}
	})
}
