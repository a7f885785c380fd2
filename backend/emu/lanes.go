package emu

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/core/profile"
	"downbeat.dev/core/repo"
)

// machine is an emulated device that several lanes share.
type machine struct {
	plan    Planned
	batches atomic.Uint64
	fault   atomic.Pointer[Fault]

	mu      sync.Mutex
	running []kernelRun // by lane; guarded by mu, its length is fixed
}

// kernelRun is the latest kernel of a lane.
type kernelRun struct {
	use float64
	end time.Time
}

// OpenLanes returns the lanes of one emulated GPU. The lanes run kernels at the same time, and a fault affects all lanes.
// The caller must Close each.
//
// Each kernel uses a part of the GPU. If the parts of the running kernels add up to 1 or less, a kernel takes as long as it
// takes alone. If they add up to s > 1, it takes s times as long. The sum is taken when a kernel begins, and kernels that
// already run keep their time.
func OpenLanes(o Options) ([]*Executor, error) {
	m := &machine{plan: o.Plan, running: make([]kernelRun, max(1, o.Lanes))}
	m.fault.Store(&Fault{})

	// A fault that is there from the start also affects loads of models.
	if m.plan.After == 0 {
		m.fault.Store(&m.plan.Fault)
	}

	var all []*Executor
	for lane := range m.running {
		e, err := openLane(o, m, lane)
		if err != nil {
			for _, opened := range all {
				err = errors.Join(err, opened.Close())
			}
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

// countBatch counts a batch of any lane and starts the planned fault when it is due.
func (m *machine) countBatch() {
	if m.plan.After > 0 && m.batches.Add(1) == m.plan.After+1 {
		m.fault.Store(&m.plan.Fault)
	}
}

// shareTime returns how long a kernel takes if it begins now on a lane. full is the time in the model's profile: what the
// kernel takes while all lanes run kernels of that model.
func (m *machine) shareTime(lane int, use float64, full time.Duration) time.Duration {
	if len(m.running) == 1 {
		return full
	}
	m.mu.Lock()
	defer m.mu.Unlock()

	now, sum := time.Now(), use
	for i, r := range m.running {
		if i != lane && r.end.After(now) {
			sum += r.use
		}
	}

	took := time.Duration(float64(full) * max(1, sum) / slowdownOf(use, len(m.running)))
	m.running[lane] = kernelRun{use, now.Add(took)}
	return took
}

// slowdownOf returns by what factor a kernel becomes slower while all lanes run kernels that use the same part of the GPU.
func slowdownOf(use float64, lanes int) float64 { return max(1, use*float64(lanes)) }

// Use returns the part of an emulated GPU that a model uses: the model's parameter gpu_use, or 1 if it has none.
func Use(m *repo.Model) float64 {
	if m == nil || m.Config == nil || m.Config.GPUUse == 0 {
		return 1
	}
	return m.Config.GPUUse
}

// LaneProfile returns ℓ(b) of model m on one of several lanes of an emulated GPU while all lanes run m. p is ℓ(b) on the
// whole GPU.
func LaneProfile(p *profile.Profile, m *repo.Model, lanes int) (*profile.Profile, error) {
	factor := slowdownOf(Use(m), lanes)
	if factor == 1 {
		return p, nil
	}

	table := p.Table(p.Max())
	for i := range table {
		table[i] = time.Duration(float64(table[i]) * factor)
	}
	scaled, err := profile.New(table)
	if err != nil {
		return nil, fmt.Errorf("model %s on one of %d lanes: %w", m.Name, lanes, err)
	}
	return scaled, nil
}
