package backend_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"downbeat.dev/backend"
	"downbeat.dev/core/repo"
)

// writeHalf writes a repository with an emulated model of batches of one that take 20 ms and half of a GPU.
func writeHalf(t *testing.T) string {
	t.Helper()
	dir := writeRepository(t)
	text := strings.NewReplacer(`"0.2"`, `"0"`, `string_value: "1" }`, `string_value: "20" }`, "max_batch_size: 16", "max_batch_size: 1").Replace(emulatedConfig) +
		"parameters { key: \"gpu_use\" value { string_value: \"0.5\" } }\n"
	if err := os.WriteFile(filepath.Join(dir, "emulated", "config.pbtxt"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestTwoLanesServe: each device is two GPUs to the scheduler, of a kind and with a memory of their own; answers are right
// while both run, and more work is done than the time that has passed, so both ran at the same time.
func TestTwoLanesServe(t *testing.T) {
	for name, c := range map[string]struct {
		options backend.Options
		gpus    []string
		kind    string
	}{
		"emulated":  {backend.Options{Emulate: 1}, []string{"emulated 0 lane 1 of 2", "emulated 0 lane 2 of 2"}, "emulated/lanes-2"},
		"processor": {backend.Options{Executors: 1, Threads: 2}, []string{"cpu 0 lane 1 of 2", "cpu 0 lane 2 of 2"}, "/threads-2/lanes-2"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := writeHalf(t)
			s := startScheduler(t, "127.0.0.1:0")
			defer s.stop(t)
			o := c.options
			o.Scheduler, o.Models, o.Library, o.Lanes = s.addr, dir, library(t), 2
			b := startBackend(t, o)
			defer stopBackend(t, b)

			h := b.Hello()
			if !slices.Equal(h.GPUs, c.gpus) || !strings.HasSuffix(h.Details[0].Kind, c.kind) || h.Details[0] != h.Details[1] {
				t.Errorf("GPUs %q of %+v, want %q of %q", h.GPUs, h.Details, c.gpus, c.kind)
			}
			client := dial(t, s.addr, "emulated", "twice")
			defer client.Close()
			if n := len(s.e.Stats().GPUs); n != 2 {
				t.Errorf("the scheduler has %d GPUs, want 2", n)
			}

			m := emulatedModel(t, dir)
			var callers sync.WaitGroup
			for caller := range 4 {
				callers.Add(1)
				go func() {
					defer callers.Done()
					for i := range 15 {
						err := askEmulated(client, m, 100*caller+i)
						if o.Emulate == 0 {
							err = errors.Join(err, askTwice(client, 100*caller+i))
						}
						if err != nil {
							t.Errorf("caller %d, request %d: %v", caller, i, err)
						}
					}
				}()
			}
			begin := time.Now()
			callers.Wait()
			passed, busy := time.Since(begin), time.Duration(0)
			for _, g := range b.Stats() {
				busy += g.Busy
				if g.Batches == 0 {
					t.Errorf("%s ran nothing", g.GPU)
				}
			}
			if busy <= passed {
				t.Errorf("the lanes were busy for %v together in %v: they took turns", busy, passed)
			}
		})
	}
}

// TestALostDeviceLosesItsLanes: of two devices with two lanes each, one is lost. Its lanes serve nothing any more, also the
// one that has found nothing itself, and the other device's serve all.
func TestALostDeviceLosesItsLanes(t *testing.T) {
	dir := writeHalf(t)
	s := startScheduler(t, "127.0.0.1:0")
	defer s.stop(t)
	b := startBackend(t, backend.Options{Scheduler: s.addr, Models: dir, Emulate: 2, Lanes: 2, Faults: "0:lost@3", Library: library(t)})
	defer stopBackend(t, b)
	client := dial(t, s.addr, "emulated")
	defer client.Close()

	m := emulatedModel(t, dir)
	for i := range 20 {
		if err := askEmulated(client, m, i); err != nil {
			t.Errorf("request %d: %v", i, err)
		}
	}
	for _, g := range b.Stats() {
		if want := strings.HasPrefix(g.GPU, "emulated 0 "); g.Lost != want {
			t.Errorf("%s lost: %v, want %v", g.GPU, g.Lost, want)
		}
	}
	if !b.Ready() {
		t.Error("the backend is not ready with one device left")
	}
}

// TestMeasureLanes prints and stores a profile for each number of lanes, each under its own kind.
func TestMeasureLanes(t *testing.T) {
	dir := writeRepository(t)
	var out bytes.Buffer
	o := backend.ProfileOptions{Models: dir, Only: []string{"twice"}, Rounds: 3, Core: -1, Threads: 2, Lanes: []int{2, 1}, Library: library(t), Out: &out}
	if err := backend.MeasureModels(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"twice version 1, one of 2 lanes, batches up to 8", "lanes 2: ℓ(b) ms", "choose lanes"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in:\n%s", want, out.String())
		}
	}

	r, err := repo.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := r.Find("twice", "")
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Profiles) != 2 || !strings.HasSuffix(m.Profiles[0].Host, "/threads-2") || m.Profiles[1].Host != m.Profiles[0].Host+"/lanes-2" ||
		!strings.HasSuffix(m.Profiles[1].Description, "one of 2 lanes while all run") {
		t.Errorf("stored %+v", m.Profiles)
	}
}

// TestMeasureLanesRefuses: every list of lanes that cannot be measured is refused before anything is.
func TestMeasureLanesRefuses(t *testing.T) {
	for want, o := range map[string]backend.ProfileOptions{
		"lanes: 0: want 1 to 16":            {Lanes: []int{0}},
		"want 1 among them":                 {Lanes: []int{2}},
		"one is named twice":                {Lanes: []int{1, 2, 2}, Threads: 2},
		"lanes: 3 is no divisor":            {Lanes: []int{1, 3}, Threads: 4},
		"threads: 1000: want 1 to 256":      {Threads: 1000},
		"core: 1: not together with":        {Lanes: []int{1, 2}, Threads: 2, Core: 1},
		"only for executors on the process": {Threads: 2, GPU: true},
	} {
		if o.Core == 0 {
			o.Core = -1
		}
		if err := backend.MeasureModels(context.Background(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}
