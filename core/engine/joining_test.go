package engine

import (
	"fmt"
	"testing"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// TestAGPULikeTheOneBeforeCostsNothingPerModel shows that a backend with many GPUs of no named kind joins in a time that
// does not grow with the number of its models for each of its GPUs. Comparing profiles allocates lists of them, so their
// number is counted by allocations.
func TestAGPULikeTheOneBeforeCostsNothingPerModel(t *testing.T) {
	allocations := func(models, gpus int) float64 {
		h := wire.BackendHello{GPUs: make([]string, gpus)}
		for i := range models {
			h.Models = append(h.Models, wire.BackendModel{Info: model.Info{Name: fmt.Sprint("m", i), Version: "1", SLO: 50e6}, Profile: slope})
		}
		s := newStage(t, Options{GPUs: 1000})
		back := 0
		return testing.AllocsPerRun(3, func() {
			back++
			h.Name = fmt.Sprint("b", back)
			b := s.mustBackend(h)
			b.Close()
		})
	}

	const few, many = 2, 202
	perGPU := (allocations(300, many) - allocations(300, few)) / (many - few)
	least := (allocations(1, many) - allocations(1, few)) / (many - few)
	if perGPU > least+2 {
		t.Errorf("a GPU more allocates %.1f times beside 300 models, and %.1f times beside one", perGPU, least)
	}
}
