package sim

import (
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/sched"
)

// Server is a scheduling policy that a World drives. Calls come in order of time; at one time first Done, then
// Arrive, then Wake.
type Server interface {
	// Arrive announces request r.
	Arrive(now Time, r int32, model int32)
	// Done reports that a GPU has finished its latest batch.
	Done(now Time, gpu int32)
	// Wake is called at the time that NextWake returned.
	Wake(now Time)
	// NextWake may be early but not late. It returns sched.Never if there is nothing to wait for.
	NextWake() Time
}

// World is a cluster of GPUs that run batches exactly as profiled, under the decisions of a Server. The GPUs are of
// one kind, or of the kinds in Kinds.
type World struct {
	Models     []Model
	GPUs       int
	Kinds      []uint8            // by GPU: the index of its profile in Variant.Profiles; nil: 0 for all
	Slowness   []float64          // by GPU: factor on the profile that the Server uses; nil: 1
	Ctrl, Data Duration           // a batch of b sent now starts Ctrl + b·Data later at the earliest
	Arrivals   []arrivals.Arrival // request r is Arrivals[r]
	// Spare is the number of bad requests that each model may still have. Run aborts when a model exceeds it; nil:
	// never.
	Spare []int
	// Rates are requests/s by model, for plans. Set it if stages will Add requests, which are not in Arrivals; nil:
	// count Arrivals.
	Rates []float64
	// Trace, if set, is called for every batch. requests are valid during the call.
	Trace func(gpu, model int32, start, finish Time, requests []int32)
	// Answered, if set, is called for every batch of a family's variant. requests are valid during the call.
	Answered func(gpu, model, variant int32, start, finish Time, requests []int32)
	// Ended, if set, is called at every request's end. A dropped request ends when it is dropped.
	Ended func(r int32, o Outcome, at Time)
	// Learners have spare work for the GPUs. Unless it is nil, the Server must be a StepServer.
	Learners []*Learner
	// LearnShare is the share of GPU time that learners buy from families, 0 to plan.LearnShareMost; 0: they use idle
	// time.
	LearnShare float64
	// Losses are losses and returns of GPUs. Unless it is nil, the Server must be a StepServer.
	Losses []Loss
	// Turn, if set, is called once at every time at which something happened. It may Add requests and Cancel them.
	Turn func(now Time)

	Result Result
	events finishes
	free   []Time // per GPU
	open   []bool // per request: not ended
	left   int    // requests that have not ended
	now    Time
	added  finishes // requests of Add that have not arrived
	due    []Time   // by request: its deadline; requests before the first Add have their model's SLO
	begun  int      // number of requests at the start of Run
	steps  steps
}

// Outcome is how a request ended.
type Outcome uint8

// The outcomes of a request in a World.
const (
	Served Outcome = iota
	Late
	Dropped
	Killed // its GPU was lost during its batch
)

// String returns the outcome's name.
func (o Outcome) String() string { return [...]string{"served", "late", "dropped", "killed"}[o] }

// Result is the result of a Run.
type Result struct {
	Total, Bad []int // per model
	Busy       Duration
	Batches    int
	SizeSum    []int // SizeSum[b]: requests that ran in a batch of b
	Spare      SpareResult
	Aborted    bool
	End        Time
}

// Run drives s over all arrivals until every request has ended. It panics when s breaks a rule of the World: two
// batches on a GPU at once, an unknown or ended request, a batch above the largest size, a variant below its family's
// floor (V1). Each Run begins at time zero with idle GPUs and needs a new Server.
func (w *World) Run(s Server) *Result {
	w.Result = Result{Total: make([]int, len(w.Models)), Bad: make([]int, len(w.Models))}
	w.free = make([]Time, w.GPUs)
	w.open = append(w.open[:0], make([]bool, len(w.Arrivals))...)
	w.left = len(w.Arrivals)
	w.events, w.now = w.events[:0], 0
	w.begun = len(w.Arrivals) - len(w.due)
	w.beginSteps(s)

	// Each round is one moment of virtual time.
	next, wake := 0, s.NextWake()
	for w.left > 0 && !w.Result.Aborted {
		at := w.added.next()
		if next < w.begun {
			at = min(at, Time(w.Arrivals[next].At))
		}

		// Advance to the earliest event. NextWake may be in the past, but time never goes back.
		now := max(w.now, min(at, wake, w.events.next(), w.steps.next()))
		if now == sched.Never {
			panic(fmt.Sprintf("sim: %d requests never ended", w.left))
		}
		w.now = now

		// The order of Server's contract. Ends come first, so that a request finds the GPU free.
		for w.events.next() <= now {
			s.Done(now, w.events.pop())
		}
		w.endSteps(now)

		for next < w.begun && Time(w.Arrivals[next].At) <= now {
			w.arrive(s, int32(next))
			next++
		}
		for w.added.next() <= now {
			n := w.added[0].count
			first := w.added.pop()
			for r := range n {
				w.arrive(s, first+r)
			}
		}

		if w.Turn != nil {
			w.Turn(now)
		}

		// The server plans last, when it knows everything that happened at this moment.
		if wake = s.NextWake(); wake <= now {
			s.Wake(now)
			wake = s.NextWake()
		}
	}

	w.Result.End = max(w.now, slices.Max(w.free))
	return &w.Result
}

// arrive passes a request to the server.
func (w *World) arrive(s Server, r int32) {
	m := w.Arrivals[r].Model
	w.Result.Total[m]++
	w.open[r] = true
	s.Arrive(w.now, r, m)
}

// Add makes n requests that arrive at a time, with a deadline of their own, and returns the number of the first. Call
// it before Run, or within Ended and Turn, where stages of an application make the requests of the next stages.
func (w *World) Add(at Time, model int32, deadline Time, n int) int32 {
	first := int32(len(w.Arrivals))
	for range n {
		w.Arrivals = append(w.Arrivals, arrivals.Arrival{At: time.Duration(at), Model: model})
		w.due = append(w.due, deadline)

		// Before Run these tables do not exist; Run makes them for all requests.
		if w.free != nil {
			w.open = append(w.open, false)
			w.left++
		}
	}
	w.added.pushAll(at, first, int32(n))
	return first
}

// Now returns the virtual time.
func (w *World) Now() Time { return w.now }

// FreeAt returns when a GPU has finished everything started on it.
func (w *World) FreeAt(gpu int32) Time { return w.free[gpu] }

// Deadline returns request r's deadline.
func (w *World) Deadline(r int32) Time {
	// The requests of Add are at the end of Arrivals.
	if k := int(r) - (len(w.Arrivals) - len(w.due)); k >= 0 {
		return w.due[k]
	}
	a := w.Arrivals[r]
	return Time(a.At).Add(w.Models[a.Model].SLO)
}

// Lead returns how long before its start a batch of b must be sent.
func (w *World) Lead(b int) Duration { return w.Ctrl + Duration(b)*w.Data }

// Kind returns the kind of a GPU.
func (w *World) Kind(gpu int32) int {
	if w.Kinds == nil {
		return 0
	}
	return int(w.Kinds[gpu])
}
