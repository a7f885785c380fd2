package backend

import (
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"downbeat.dev/cuda"
)

// TestPowerMetrics shows that power, energy and memory of GPUs have Triton's names. Values that GPUs do not report
// have no series, and neither has a host without GPUs.
func TestPowerMetrics(t *testing.T) {
	gather := func(list powerMetrics) (all []string) {
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(list)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.Metric {
				all = append(all, fmt.Sprint(f.GetName(), " ", m.Label[0].GetValue(), " ", m.GetGauge().GetValue()+m.GetCounter().GetValue()))
			}
		}
		return all
	}

	two := gather(func() ([]cuda.GPU, error) {
		return []cuda.GPU{{UUID: "GPU-a", Watts: 61.5, WattsMost: 700, Joules: 7200, MemoryBytes: 80, MemoryFree: 30}, {UUID: "GPU-b", MemoryBytes: 40, MemoryFree: 40}}, nil
	})
	want := []string{"nv_energy_consumption GPU-a 7200", "nv_gpu_memory_total_bytes GPU-a 80", "nv_gpu_memory_total_bytes GPU-b 40", "nv_gpu_memory_used_bytes GPU-a 50",
		"nv_gpu_memory_used_bytes GPU-b 0", "nv_gpu_power_limit GPU-a 700", "nv_gpu_power_usage GPU-a 61.5"}
	if !slices.Equal(two, want) {
		t.Errorf("%q, want %q", two, want)
	}
	if none := gather(func() ([]cuda.GPU, error) { return nil, cuda.ErrNotSupported }); len(none) != 0 {
		t.Errorf("without GPUs: %q", none)
	}
}
