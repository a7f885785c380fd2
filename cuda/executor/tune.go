package executor

import (
	"math"
	"time"

	"downbeat.dev/cuda"
	"downbeat.dev/cuda/kernels"
	"downbeat.dev/cuda/layers"
)

// Tuning runs each option of a step on separate memory and selects the fastest. Which kernel or library algorithm
// wins depends more on the shape than on any rule.

const (
	tuneRounds = 5               // timed together, after an untimed one
	tuneLimit  = 5 * time.Second // of one option, after which the device counts as lost
	tuneFill   = 0x3c            // operands: about 1 in binary16, 0.01 in the other types; never zeros, which run faster
)

// tuneStep returns the index of the fastest option; 0 if none can be timed.
func (r *Runtime) tuneStep(p *layers.Plan, s *layers.Step, all []option) (best int) {
	t := tuning{r: r}
	defer t.closeTuning()

	if t.openTuning(p, s, all) != nil {
		return 0
	}

	least := time.Duration(math.MaxInt64)
	for i := range all {
		if took, err := t.timeOption(&all[i]); err == nil && took < least {
			best, least = i, took
		}

		// After a trial that lost the device there is nothing to compare.
		if r.dev.Err() != nil {
			return 0
		}
	}
	return best
}

// tuning holds the memory and the events of one step's trials.
type tuning struct {
	r           *Runtime
	st          *cuda.Stream
	from, to    *cuda.Event
	memory      []*cuda.Memory
	base        []cuda.Address
	work, zeros int
	bound       []byte
}

func (t *tuning) openTuning(p *layers.Plan, s *layers.Step, all []option) (err error) {
	if t.st, err = t.r.dev.NewStream(); err != nil {
		return err
	}
	if t.from, err = t.r.dev.NewEvent(); err != nil {
		return err
	}
	if t.to, err = t.r.dev.NewEvent(); err != nil {
		return err
	}

	// Trials use their own buffers, because the plan's do not exist yet.
	t.base = make([]cuda.Address, len(p.Buffers)+2)
	t.work, t.zeros = len(p.Buffers), len(p.Buffers)+1

	var sub cuda.Submission
	for _, b := range s.Buffers() {
		if err = t.allocBuffer(&sub, b, p.Buffers[b].Bytes, tuneFill); err != nil {
			return err
		}
	}

	// The options share one workspace.
	var workspace int64
	for i := range all {
		workspace = max(workspace, all[i].workspace)
	}
	if workspace > 0 {
		if err = t.allocBuffer(&sub, t.work, workspace, 0xff); err != nil {
			return err
		}
	}

	// Counters are zero before and after every launch.
	if err = t.allocBuffer(&sub, t.zeros, 4*kernels.Counters, 0); err != nil {
		return err
	}
	return t.r.dev.Submit(&sub)
}

func (t *tuning) allocBuffer(sub *cuda.Submission, buffer int, bytes int64, fill byte) error {
	// A step may use one buffer several times.
	if t.base[buffer] != 0 {
		return nil
	}

	m, err := t.r.dev.Alloc(bytes)
	if err != nil {
		return err
	}

	t.memory = append(t.memory, m)
	t.base[buffer] = m.Address()
	sub.Fill(t.st, m.Address(), fill, bytes)
	return nil
}

// timeOption runs an option once, then tuneRounds times between two events.
func (t *tuning) timeOption(o *option) (time.Duration, error) {
	o.placeRoom(t.work, t.zeros)
	var sub cuda.Submission

	// The first round warms up and does not count.
	for i := range 1 + tuneRounds {
		for k := range o.launches {
			o.launches[k].addTo(&sub, t.st, t.base, &t.bound)
		}
		if i == 0 {
			sub.Record(t.st, t.from)
		}
	}

	sub.Record(t.st, t.to)
	if err := t.r.dev.Submit(&sub); err != nil {
		return 0, err
	}
	if err := t.r.dev.WaitFor(tuneLimit, t.to); err != nil {
		return 0, err
	}
	return t.r.dev.Elapsed(t.from, t.to)
}

func (t *tuning) closeTuning() {
	for _, m := range t.memory {
		m.Free()
	}
	t.to.Free()
	t.from.Free()
	t.st.Free()
}
