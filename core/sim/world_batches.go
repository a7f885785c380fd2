package sim

import (
	"fmt"

	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
)

// Start runs a batch of a model without variants on a GPU at the time at, which must respect Lead and the GPU's
// latest batch.
func (w *World) Start(at Time, gpu, model int32, requests []int32) {
	finish := w.runBatch(at, gpu, w.Models[model].Profile, requests)
	if w.Trace != nil {
		w.Trace(gpu, model, at, finish, requests)
	}
}

// StartVariant runs a batch of a family's variant, which must run on the GPU's kind.
func (w *World) StartVariant(at Time, gpu, model, variant int32, requests []int32) {
	v := &w.Models[model].Variants[variant]
	if v.Accuracy < w.Models[model].Floor {
		panic(fmt.Sprintf("sim: V1: variant %s has an accuracy of %v, below the floor of %v", v.Name, v.Accuracy, w.Models[model].Floor))
	}

	p := v.Profiles[w.Kind(gpu)]
	if p == nil {
		panic(fmt.Sprintf("sim: variant %s does not run on kind %d", v.Name, w.Kind(gpu)))
	}

	finish := w.runBatch(at, gpu, p, requests)
	if w.Answered != nil {
		w.Answered(gpu, model, variant, at, finish, requests)
	}
}

// Load makes a GPU load a model for d after its latest batch. Done reports the end of the load.
func (w *World) Load(gpu int32, d Duration) {
	w.free[gpu] = max(w.free[gpu], w.now).Add(d)
	w.events.push(w.free[gpu], gpu)
}

// runBatch executes a batch as profiled, ends its requests and returns when it finishes.
func (w *World) runBatch(at Time, gpu int32, p *profile.Profile, requests []int32) Time {
	b := len(requests)
	if b == 0 || b > p.Max() {
		panic(fmt.Sprintf("sim: batch of %d, want 1 to %d", b, p.Max()))
	}

	at = w.behindStep(at, gpu)
	if at < w.free[gpu] || at < w.now.Add(w.Lead(b)) {
		panic(fmt.Sprintf("sim: gpu %d is free at %d, now %d: batch at %d", gpu, w.free[gpu], w.now, at))
	}

	exec := Duration(p.Exec(b))
	if w.Slowness != nil {
		exec = Duration(float64(exec) * w.Slowness[gpu])
	}
	end := at.Add(exec)
	w.free[gpu] = end
	w.events.push(end, gpu)

	// The table of batch sizes grows to the largest that runs.
	w.Result.Busy += exec
	w.Result.Batches++
	for len(w.Result.SizeSum) <= b {
		w.Result.SizeSum = append(w.Result.SizeSum, 0)
	}
	w.Result.SizeSum[b] += b

	// Settle the requests' outcomes when the batch starts, as of its end or of the loss of its GPU: both are known,
	// and nothing else can happen in between.
	killed := w.killedWithin(gpu, end)
	for _, r := range requests {
		switch {
		case killed < end:
			w.endRequest(r, Killed, killed)
		case w.Deadline(r) < end:
			w.endRequest(r, Late, end)
		default:
			w.endRequest(r, Served, end)
		}
	}
	return end
}

// killedWithin returns when a GPU is killed between now and the end of a batch; Never if it is not.
func (w *World) killedWithin(gpu int32, end Time) Time {
	for i := range w.Losses {
		if l := &w.Losses[i]; l.Kill && l.GPU == gpu && w.now < l.At && l.At < end {
			return l.At
		}
	}
	return sched.Never
}

// Drop ends a request unserved.
func (w *World) Drop(r int32) { w.endRequest(r, Dropped, w.now) }

// endRequest records how a request ended. Each request ends once.
func (w *World) endRequest(r int32, o Outcome, at Time) {
	if !w.open[r] {
		panic(fmt.Sprintf("sim: request %d ended twice or never arrived", r))
	}

	w.open[r] = false
	w.left--
	if o != Served {
		m := w.Arrivals[r].Model
		w.Result.Bad[m]++
		w.countKept(r)

		// A goodput search need not see the rest of a failed run.
		if w.Spare != nil && w.Result.Bad[m] > w.Spare[m] {
			w.Result.Aborted = true
		}
	}

	if w.Ended != nil {
		w.Ended(r, o, at)
	}
}
