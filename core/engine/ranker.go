package engine

import (
	"sync"
	"sync/atomic"

	"downbeat.dev/core/sched"
)

// ranker is one lock and the GPUs of one sub-cluster.
type ranker struct {
	number uint32
	loop   *Loop
	wake   atomic.Int64 // sched.Time at which Advance is due; written under mu

	mu     sync.Mutex
	latest sched.Time    // of the turns that were here
	s      *sched.Ranker // mu guards both
}

// gpu is one GPU of a backend. All but the counters is immutable.
type gpu struct {
	id    sched.GPUID
	index uint32 // on its backend
	epoch uint32 // of all GPUs that ever were, this one's number; ids are used again
	sub   uint32
	b     *Backend
	name  string

	busy    atomic.Int64  // ns of execution reported
	batches atomic.Uint64 // reported done
	batch   atomic.Uint64 // the batch sent latest; 0: it is done
}

// advance matches GPUs and candidates and moves the grants into the turn. mu is held.
func (r *ranker) advance(e *Engine, t *turn) {
	t.grants = append(t.grants, r.s.Advance(t.now)...)
	at := r.s.NextWake()
	if sched.Time(r.wake.Load()) != at {
		r.wake.Store(int64(at))
		r.loop.kick(at)
	}
}
