package engine

import (
	"strings"
	"testing"
	"time"
)

// TestEpochsAreMadeBesideTheRegistry shows that in real time the search runs in its own goroutine, plan after plan,
// and that the engine closes during an epoch.
func TestEpochsAreMadeBesideTheRegistry(t *testing.T) {
	e, err := New(Options{Epoch: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.OpenBackend(hello("b", 1, slope, "m"), &emulated{s: &stage{t: t, e: e}, peers: map[uint32]string{}}); err != nil {
		t.Fatal(err)
	}
	for e.Stats().Epochs.Kept < 2 {
		time.Sleep(time.Millisecond) // go test's own limit ends this
	}
	if x := e.Stats().Epochs; x.Applied+x.Failed != 0 {
		t.Errorf("%+v: nothing is asked for, so that nothing is worth a move", x)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if _, err := New(Options{Epoch: -time.Second}); err == nil || !strings.Contains(err.Error(), "epoch -1s") {
		t.Errorf("a negative epoch: %v", err)
	}
}
