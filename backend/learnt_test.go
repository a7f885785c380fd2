package backend

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/core/wire"
)

// maker is an executor that notes how versions are loaded, and refuses to make them from others while shape is set.
type maker struct {
	device.Executor
	shape         bool
	loads         atomic.Int64
	batches       atomic.Int64
	madeFrom      string
	file, another string
}

func (k *maker) Load(m *device.Model) (device.Footprint, error) {
	k.loads.Add(1)
	k.another = string(m.Source.File)
	return k.Executor.Load(m)
}

// Capabilities asks for a warm-up, which would show in batches.
func (k *maker) Capabilities() device.Capabilities {
	c := k.Executor.Capabilities()
	c.Passes = 2
	return c
}

func (k *maker) Submit(b device.Batch) error {
	k.batches.Add(1)
	return k.Executor.Submit(b)
}

func (k *maker) LoadLike(m, like *device.Model) (device.Footprint, error) {
	if k.shape {
		return device.Footprint{}, fmt.Errorf("refused: %w", device.ErrShape)
	}
	k.madeFrom, k.file = like.Version, string(m.Source.File)
	return k.Executor.(device.Successor).LoadLike(m, like)
}

// TestALearntVersionIsMadeFromTheOneBefore publishes a version: no GPU loads it or runs a batch to warm it up, and its file
// is the learner's. Where it cannot be made so, it is loaded and warmed up, from the same file. Later loads have none.
func TestALearntVersionIsMadeFromTheOneBefore(t *testing.T) {
	for _, shape := range []bool{false, true} {
		r := newRig(t, rigOptions{gpus: 2, alpha: 100 * time.Microsecond, batchMax: 2})
		var all []*maker
		for i, g := range r.gpus {
			k := &maker{Executor: r.emus[i], shape: shape}
			all = append(all, k)
			g.executors = []device.Executor{k}
			route := *g.routeOf(0)
			route.executor, route.can = k, k.Capabilities()
			g.setRoute(0, &route)
		}
		next, source := *r.model, *r.model.Source
		next.Version, source.Version, next.Source = "2", "2", &source
		s := &shelf{models: map[string]*device.Model{"m": &next}}
		r.config.Find = s.find
		if err := r.LoadLearnt(t.Context(), "m", "2", []byte("weights")); err != nil {
			t.Fatal(err)
		}

		for i, k := range all {
			got := fmt.Sprintf("%s|%s|%d|%d|%s", k.madeFrom, k.file, k.loads.Load(), k.batches.Load(), k.another)
			if want := map[bool]string{false: "1|weights|0|0|", true: "||1|4|weights"}[shape]; got != want {
				t.Errorf("GPU %d: %q, want %q", i, got, want)
			}
		}
		if source.File != nil {
			t.Error("the file is kept after the load")
		}
		for gpu := range uint32(2) {
			e, inputs := r.batch(uint64(gpu), 1)
			e.GPU, e.Model = gpu, 1
			r.Execute([]wire.Execute{e})
			for id, in := range inputs {
				r.checkOutput(id, in)
			}
		}
		if got := fmt.Sprint(r.states(1), r.states(0)); got != "[loaded] [unloading unloaded]" {
			t.Errorf("reports: %v", got)
		}
	}
}

// TestALearntVersionFollowsTheLatest: of two versions that are loaded, with other graphs, a learnt one follows the later. It
// takes as long as that one does.
func TestALearntVersionFollowsTheLatest(t *testing.T) {
	r := newRig(t, rigOptions{alpha: 100 * time.Microsecond, batchMax: 2})
	s := &shelf{models: map[string]*device.Model{}}
	r.config.Find = s.find
	put := func(version string, m *device.Model) {
		next, source := *m, *m.Source
		next.Version, source.Version, next.Source = version, version, &source
		s.models["m"] = &next
	}

	slower := devicetest.Emulated(t, "m", 2, 2*time.Millisecond, 0, r.model.Source.Inputs, r.model.Source.Outputs)
	put("2", slower)
	if err := r.LoadModel(t.Context(), "m", "2"); err != nil {
		t.Fatal(err)
	}
	if !r.loadedEverywhere(0) || !r.loadedEverywhere(1) {
		t.Fatal("one version is loaded: the test shows nothing")
	}

	put("3", slower)
	s.models["m"].Profile = devicetest.Emulated(t, "m", 2, 5*time.Millisecond, 0, r.model.Source.Inputs, r.model.Source.Outputs).Profile // of another host
	if err := r.LoadLearnt(t.Context(), "m", "3", []byte("weights")); err != nil {
		t.Fatal(err)
	}
	if got, want := r.modelEntries()[2].model.Profile.Exec(1), 2*time.Millisecond; got != want {
		t.Errorf("version 3 is said to take %v, and takes %v as version 2 does", got, want)
	}
}
