package sim

import (
	"fmt"
	"math/rand/v2"
)

// Learner has spare work for the GPUs of a World: steps with a length and no deadline.
type Learner struct {
	Step     Duration // the longest step, as the learner declares it
	Shortest float64  // its steps take this share of Step or more; 0: exactly Step
	Weight   float64  // relative to other learners; 0: 1
	Seed     uint64
	// Overruns is the share of its steps that take up to five times Step; Untold is the share whose end it does not
	// report.
	Overruns, Untold float64

	rng *rand.Rand
}

// Loss is the loss and return of a GPU. The GPU leaves at a time, or as soon afterwards as no batch runs on it; its
// step is lost.
type Loss struct {
	At   Time
	GPU  int32
	Away Duration
	// Kill removes the GPU exactly at that time. Requests of its batches end as Killed.
	Kill bool
}

// StepServer is a Server that runs spare work on idle GPUs and handles the loss of GPUs.
type StepServer interface {
	Server
	// StepDone reports the end of a GPU's step.
	StepDone(now Time, gpu int32)
	// Lose reports the loss of a GPU, Return its return.
	Lose(now Time, gpu int32)
	Return(now Time, gpu int32)
}

// SpareResult counts spare work.
type SpareResult struct {
	Steps           int // started
	Time            Duration
	ByLearner       []Duration
	Overran, Untold int // faults that happened
	LostGPUs        int // lost in the middle of a step
	// Delayed counts the batches that began later than planned, behind a step that overran.
	Delayed int
	// Kept counts the requests that ended unserved or late while a GPU ran a step: an upper bound of those that the
	// GPU could have served.
	Kept int
}

// step is a GPU's present step of spare work.
type step struct {
	learner   int32
	runs      bool
	untold    bool
	overran   bool
	from, end Time
}

// steps are the steps on a World's GPUs.
type steps struct {
	server StepServer
	of     []step
	away   []bool
	behind []bool   // by GPU: its latest batch began later than planned
	ends   finishes // ends of steps by GPU number, and losses by GPU number + GPUs
	losses []Loss   // by GPU: its next loss
	count  int      // running steps
}

func (s *steps) next() Time { return s.ends.next() }

// beginSteps prepares a run.
func (w *World) beginSteps(s Server) {
	w.steps = steps{}
	if len(w.Learners)+len(w.Losses) == 0 {
		return
	}

	server, ok := s.(StepServer)
	if !ok {
		panic(fmt.Sprintf("sim: %T serves no learners", s))
	}

	w.steps = steps{server: server, of: make([]step, w.GPUs), away: make([]bool, w.GPUs), behind: make([]bool, w.GPUs), losses: make([]Loss, 0, len(w.Losses))}
	w.Result.Spare.ByLearner = make([]Duration, len(w.Learners))

	// Every run repeats the same steps and losses.
	for i, l := range w.Learners {
		l.rng = rand.New(rand.NewPCG(l.Seed, uint64(i)))
	}
	for i, x := range w.Losses {
		w.steps.losses = append(w.steps.losses, x)
		w.steps.ends.push(x.At, int32(w.GPUs+i))
	}
}

// StartStep runs a learner's step on a GPU at the time at, when the GPU must be idle.
func (w *World) StartStep(at Time, gpu, learner int32) {
	l, x := w.Learners[learner], &w.steps.of[gpu]
	if at < w.now.Add(w.Ctrl) || at < w.free[gpu] || x.runs && !x.overran || w.steps.away[gpu] {
		panic(fmt.Sprintf("sim: gpu %d is free at %d, now %d, away %v: step at %d behind %+v", gpu, w.free[gpu], w.now, w.steps.away[gpu], at, *x))
	}

	took := l.Step
	if l.Shortest > 0 {
		took = Duration(float64(l.Step) * (l.Shortest + (1-l.Shortest)*l.rng.Float64()))
	}
	if x.runs {
		w.forgetStep(x) // the scheduler no longer waits for its end
	}

	// Behind a step that overran, this one starts late, too.
	*x = step{learner: learner, runs: true, from: max(at, x.end), overran: x.end > at}

	// Draw the faults of the learner: a longer step than it declared, or an end that it does not report.
	if l.Overruns > 0 && l.rng.Float64() < l.Overruns {
		took, x.overran = Duration(float64(l.Step)*(1.01+4*l.rng.Float64())), true
		w.Result.Spare.Overran++
	}
	if l.Untold > 0 && l.rng.Float64() < l.Untold {
		x.untold = true
		w.Result.Spare.Untold++
	}
	x.end = x.from.Add(took)

	w.Result.Spare.Steps++
	w.steps.count++
	w.steps.ends.push(x.end, gpu)
}

// endSteps ends the steps that are due and applies losses and returns of GPUs.
func (w *World) endSteps(now Time) {
	s := &w.steps

	// Losses share the heap with steps; their numbers are above those of all GPUs.
	for s.ends.next() <= now {
		if id := s.ends.pop(); int(id) >= w.GPUs {
			w.applyLoss(now, id)
		} else if x := &s.of[id]; x.runs && x.end <= now {
			w.forgetStep(x)
			if !x.untold {
				s.server.StepDone(now, id)
			}
		}
	}
}

// forgetStep counts the time of a step until now.
func (w *World) forgetStep(x *step) {
	x.runs = false
	w.steps.count--

	// Count a step on a lost GPU up to now.
	took := min(x.end, w.now).Sub(x.from)
	w.Result.Spare.Time += took
	w.Result.Spare.ByLearner[x.learner] += took
}

// applyLoss takes a GPU away or returns it. The outcomes of a batch are settled at its start, so the loss of a GPU waits
// for the end of its batch.
func (w *World) applyLoss(now Time, id int32) {
	s := &w.steps
	l := s.losses[int(id)-w.GPUs]
	switch {
	case s.away[l.GPU]:
		s.away[l.GPU] = false
		s.server.Return(now, l.GPU)
	case w.free[l.GPU] > now && !l.Kill:
		s.ends.push(w.free[l.GPU], id)
	default:
		if x := &s.of[l.GPU]; x.runs {
			w.Result.Spare.LostGPUs++
			w.forgetStep(x)
		}

		// Tell the server last, so that its next orders find the GPU gone.
		s.away[l.GPU] = true
		w.forgetBatches(now, l.GPU)
		s.ends.push(now.Add(max(1, l.Away)), id)
		s.server.Lose(now, l.GPU)
	}
}

// forgetBatches removes the ends of a GPU's batches, since they will not be reported.
func (w *World) forgetBatches(now Time, gpu int32) {
	// Rebuild the heap: an entry in its middle cannot be removed.
	all := w.events
	w.events = nil
	for _, e := range all {
		if e.number != gpu {
			w.events.push(e.at, e.number)
		}
	}
	w.free[gpu] = now
}

// behindStep returns when a batch planned for a time starts on a GPU: later, if it is behind a step that overran or
// behind a batch that was delayed for that reason. Behind other steps it starts as planned.
func (w *World) behindStep(at Time, gpu int32) Time {
	if w.steps.of == nil {
		return at
	}

	x := &w.steps.of[gpu]
	if w.steps.away[gpu] {
		panic(fmt.Sprintf("sim: a batch on gpu %d, which is away", gpu))
	}

	// A batch behind a delayed batch is delayed, too.
	if w.steps.behind[gpu] && at < w.free[gpu] {
		return w.free[gpu]
	}
	w.steps.behind[gpu] = false
	if !x.runs || at >= x.end {
		return at
	}

	// The scheduler knows how long a step may take, so only a step that overran may delay a batch.
	if !x.overran {
		panic(fmt.Sprintf("sim: V2: a batch on gpu %d at %d, which runs a step until %d", gpu, at, x.end))
	}
	w.Result.Spare.Delayed++
	w.steps.behind[gpu] = true
	return x.end
}

// countKept counts a request that was not served in time.
func (w *World) countKept(int32) {
	if w.steps.count > 0 {
		w.Result.Spare.Kept++
	}
}
