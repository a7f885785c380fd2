package worker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/emu"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens an application of one model that takes 10 ms, then two requests of one that takes 5 ms, on one emulated executor.
func open(t *testing.T) *Worker {
	t.Helper()
	dir := t.TempDir()
	for name, ms := range map[string]int{"first": 10, "second": 5} {
		text := fmt.Sprintf(`name: %q platform: "emulated" max_batch_size: 4
input [ { name: "x" data_type: TYPE_UINT8 dims: [ 1 ] } ] output [ { name: "y" data_type: TYPE_UINT8 dims: [ 1 ] } ]
parameters { key: "alpha_ms" value { string_value: "%d" } } parameters { key: "beta_ms" value { string_value: "0" } }
parameters { key: "slo_ms" value { string_value: "1000" } }`, name, ms)
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	app := Application{Name: "two", Modules: []Module{{Model: "first", FanOut: 1}, {Model: "second", FanOut: 2, After: []int{0}}}}
	w, err := Open(dir, app, 1, func() (device.Executor, error) { return emu.New() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// TestWorkerFinishesWhatItCan: a frame takes 20 ms, so at most 50 of them end in a second however many come, and all where few come.
func TestWorkerFinishesWhatItCan(t *testing.T) {
	w := open(t)
	for fps, want := range map[float64][2]int{4: {5, 8}, 200: {5, 100}} {
		o, err := w.Offer(context.Background(), fps, 2*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0
		for _, n := range o.PerSecond {
			sum += n
		}
		if sum != len(o.Took) || sum < want[0] || sum > want[1] {
			t.Errorf("%v fps for 2 s: %d ended (%v), want %v", fps, sum, o.PerSecond, want)
		}
		for _, took := range o.Took {
			if took < 20*time.Millisecond {
				t.Errorf("a frame took %v, its modules one after the other take 20ms", took)
			}
		}
	}

	if fps, err := w.Saturate(context.Background(), time.Second); err != nil || fps <= 1 || fps > 50 {
		t.Errorf("%v fps are sustained, %v; want more than 1, and 50 at most", fps, err)
	}
}

// TestFailuresAreTold: an application of a model that is not there is refused, and what fails on an executor comes back.
func TestFailuresAreTold(t *testing.T) {
	if _, err := Open(t.TempDir(), Application{Name: "a", Modules: []Module{{Model: "none"}}}, 1, nil); err == nil {
		t.Error("an application of an unknown model was opened")
	}

	w := open(t)
	l := <-w.free
	l.executor = failing{l.executor}
	w.free <- l
	if _, err := w.Offer(context.Background(), 10, time.Second); err == nil {
		t.Error("frames whose requests fail have no error")
	}
}

type failing struct{ device.Executor }

func (failing) Submit(device.Batch) error { return device.ErrLost }
