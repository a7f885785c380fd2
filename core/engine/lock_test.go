package engine

import (
	"runtime"
	"slices"
	"testing"
)

// TestWhoWaitsGoesBeforeHousekeeping: of a housekeeper that takes a lock again and again and a goroutine that waits for
// it, the one that waits comes next, each time.
func TestWhoWaitsGoesBeforeHousekeeping(t *testing.T) {
	const rounds = 200
	var l lock
	var order []string // guarded by l
	l.Lock()
	for range rounds {
		came := l.came.Load()
		go func() {
			l.Lock()
			order = append(order, "waits")
			l.Unlock()
		}()
		for l.came.Load() == came {
			runtime.Gosched()
		}
		order = append(order, "keeps")
		l.UnlockBehind()
		l.Lock()
	}
	l.Unlock()

	if want := slices.Repeat([]string{"keeps", "waits"}, rounds); !slices.Equal(order, want) {
		t.Errorf("%d turns, want housekeeping and the waiting goroutine by turns: %v", len(order), order[:min(len(order), 20)])
	}
}
