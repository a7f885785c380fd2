package goodput

import (
	"slices"
	"testing"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sim"
)

// TestPartedClusterKeepsApart: GPUs are parted evenly, every sub-cluster has models, and a model's batches run on the GPUs
// of its sub-cluster alone.
func TestPartedClusterKeepsApart(t *testing.T) {
	s := evenSetting("parted", profile.GTX1080Ti()[:12], 12, arrivals.Poisson)
	s.SubClusters = 3
	o := small()
	o.Seeds, o.Span = 1, 2*time.Second
	rate := s.Capacity() / 2
	w, err := Prepare(s, o, rate*1.1)
	if err != nil {
		t.Fatal(err)
	}

	policies, err := Policies("downbeat")
	if err != nil {
		t.Fatal(err)
	}
	world := w.World(0, rate, nil)
	var models [3]int
	for i := range world.Models {
		models[world.Models[i].SubCluster]++
	}
	if want := []uint8{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}; !slices.Equal(world.Kinds, want) || slices.Min(models[:]) < 2 {
		t.Errorf("GPUs in sub-clusters %v, models %v", world.Kinds, models)
	}

	used := make([]bool, s.GPUs)
	world.Trace = func(gpu, model int32, _, _ sim.Time, _ []int32) {
		used[gpu] = true
		if got, want := world.Kind(gpu), int(world.Models[model].SubCluster); got != want {
			t.Fatalf("model %d of sub-cluster %d ran on GPU %d of %d", model, want, gpu, got)
		}
	}
	world.Run(policies[0].New(world))
	if slices.Contains(used, false) {
		t.Errorf("GPUs used: %v, want all", used)
	}

	// Whole clusters are as they were.
	if all, err := Select("parted"); err != nil || len(all) != 8 || all[3].GPUs/all[3].SubClusters != 16 || all[5].GPUs/all[5].SubClusters != 32 ||
		all[7].GPUs/all[7].SubClusters != 64 {
		t.Errorf("%d settings, %v: want eight, the fourth of 16 GPUs each, the sixth of 32 and the last of 64", len(all), err)
	}
}
