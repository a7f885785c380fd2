package engine

import (
	"sync/atomic"
	"time"

	"downbeat.dev/core/sched"
)

// ranker is one lock and the GPUs of one sub-cluster.
type ranker struct {
	number uint32
	loop   *Loop
	wake   atomic.Int64                   // sched.Time at which Advance is due; written under mu
	groups atomic.Pointer[[]sched.Groups] // of the backends of its GPUs; the registry replaces it; nil: none

	models atomic.Pointer[[]uint32] // ids of the models that all of its GPUs have loaded, ascending; nil: it never had GPUs

	spread  atomic.Bool // a service with several homes has one here
	outlook outlook

	mu      lock
	latest  sched.Time    // the latest time of any turn here
	s       *sched.Ranker // mu guards everything
	working atomic.Int32  // GPUs whose latest batch did not fail; written under mu
	sound   int           // those whose latest batch was not slow either; written under mu
	tried   int           // GPUs that are held back or on trial
	steps   *ring         // the latest steps of spare work; nil: there was none
}

// gpu is one GPU of a backend in one sub-cluster. Everything but the models, the counters and its health is
// immutable: a GPU that changes its sub-cluster becomes another gpu.
//
// Each batch reads everything but the name, in one cache line.
type gpu struct {
	id     sched.GPUID
	index  uint32 // on its backend
	epoch  uint32 // this GPU's number among all that ever were; ids are reused
	sub    uint32
	b      *Backend
	models atomic.Pointer[[]uint32] // by model id: the model's number in the hello + 1; 0: not loaded
	health health                   // its ranker's lock guards it
	*gpuCounts
	name string
	_    [48]byte
}

// gpuCounts are a GPU's counters, which survive a change of sub-cluster.
type gpuCounts struct {
	busy    atomic.Int64  // ns of execution reported
	batches atomic.Uint64 // reported done
	batch   atomic.Uint64 // the latest batch sent; 0: it is done
	freed   atomic.Int64  // when the batch reported last left it, as sched knows
	sick    atomic.Bool   // it is held back, or has been and has not run a sound batch since
	stepCounts
}

// numberOnBackend returns the number by which the backend knows a model, and whether the GPU has it loaded.
func (u *gpu) numberOnBackend(m sched.ModelID) (uint32, bool) {
	models := *u.models.Load()
	if int(m) >= len(models) || models[m] == 0 {
		return 0, false
	}
	return models[m] - 1, true
}

// profile returns ℓ(b) of a model that the GPU has loaded, as the registry knows it.
func (u *gpu) profile(m uint32) []time.Duration {
	n, _ := u.numberOnBackend(sched.ModelID(m))
	return u.b.hello.Models[n].Profile
}

// usualTime returns a batch's duration by the profile of the GPU's own backend, or else the planned one. The
// profile is published before the model is marked as loaded, so a goroutine that sees the mark also finds the profile.
func (u *gpu) usualTime(f *flight) sched.Duration {
	n, loaded := u.numberOnBackend(sched.ModelID(f.model))
	if !loaded {
		return f.exec
	}
	if table := (*u.b.measured.Load())[n]; len(f.requests) <= len(table) {
		return sched.Duration(table[len(f.requests)-1])
	}
	return f.exec
}

// advance matches GPUs and candidates and moves the grants into the turn. mu is held.
func (r *ranker) advance(e *Engine, t *turn) {
	// A GPU on trial gets one batch at a time.
	grants := r.s.Advance(t.now)
	if r.tried > 0 {
		r.holdTrials(e, t.now, grants)
	}
	t.grants = append(t.grants, grants...)

	// Spare work takes only what the candidates have left.
	if steps := r.s.SpareSteps(); len(steps) > 0 {
		r.orderSteps(e, t, steps)
	}

	// Partitions place services with several homes by the outlook; a changed one makes the turn visit them.
	if r.spread.Load() && r.outlook.publish(r.s.Outlook()) {
		t.looks = true
	}

	at := r.s.NextWake()
	if sched.Time(r.wake.Load()) != at {
		r.wake.Store(int64(at))
		r.loop.wakeBy(at)
	}
}
