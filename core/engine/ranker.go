package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/core/sched"
)

// ranker is one lock and the GPUs of one sub-cluster.
type ranker struct {
	number uint32
	loop   *Loop
	wake   atomic.Int64                   // sched.Time at which Advance is due; written under mu
	groups atomic.Pointer[[]sched.Groups] // of the backends whose GPUs it has; the registry replaces; nil: of none

	models atomic.Pointer[[]uint32] // ids of what all of its GPUs have loaded, ascending; nil: it never had GPUs

	spread  atomic.Bool // services with several homes have one here
	outlook outlook

	mu      sync.Mutex
	latest  sched.Time    // of the turns that were here
	s       *sched.Ranker // mu guards all
	working atomic.Int32  // GPUs whose latest batch did not fail; written under mu
	sound   int           // those of them whose latest batch was not slow either
	tried   int           // GPUs that are held back, or run a batch after that to show that they are sound
	steps   *ring         // the latest steps of spare work; nil: there was none
}

// gpu is one GPU of a backend in one sub-cluster. All but the models, the counters and its health is immutable: a GPU
// that changes its sub-cluster becomes another gpu.
type gpu struct {
	id     sched.GPUID
	index  uint32 // on its backend
	epoch  uint32 // of all GPUs that ever were, this one's number; ids are used again
	sub    uint32
	b      *Backend
	name   string
	models atomic.Pointer[[]uint32] // by model id: the number of the model in the hello +1; 0: it is not loaded
	health health                   // its ranker's lock guards it
	*gpuCounts
}

// gpuCounts is what is counted of a GPU, whatever its sub-cluster.
type gpuCounts struct {
	busy    atomic.Int64  // ns of execution reported
	batches atomic.Uint64 // reported done
	batch   atomic.Uint64 // the batch sent latest; 0: it is done
	freed   atomic.Int64  // when the batch that was reported latest left it, as sched knows it
	sick    atomic.Bool   // it is held back, or was and has not run a sound batch since
	stepCounts
}

// runs returns the number that the backend knows a model by, and whether the GPU has it loaded.
func (u *gpu) runs(m sched.ModelID) (uint32, bool) {
	models := *u.models.Load()
	if int(m) >= len(models) || models[m] == 0 {
		return 0, false
	}
	return models[m] - 1, true
}

// profile returns ℓ(b) of a model that the GPU has loaded, as the registry knows it.
func (u *gpu) profile(m uint32) []time.Duration {
	n, _ := u.runs(sched.ModelID(m))
	return u.b.hello.Models[n].Profile
}

// usualTime is what a batch takes by the profile of the GPU's own backend, or else as planned. Who has read that the model is loaded finds its
// profile, too: it is published first.
func (u *gpu) usualTime(f *flight) sched.Duration {
	n, loaded := u.runs(sched.ModelID(f.model))
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
	grants := r.s.Advance(t.now)
	if r.tried > 0 {
		r.holdTrials(e, t.now, grants)
	}
	t.grants = append(t.grants, grants...)
	if steps := r.s.SpareSteps(); len(steps) > 0 {
		r.orderSteps(e, t, steps)
	}
	if r.spread.Load() && r.outlook.publish(r.s.Outlook()) {
		t.looks = true
	}
	at := r.s.NextWake()
	if sched.Time(r.wake.Load()) != at {
		r.wake.Store(int64(at))
		r.loop.kick(at)
	}
}
