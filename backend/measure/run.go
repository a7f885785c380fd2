package measure

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/model"
	"downbeat.dev/core/profile"
)

// Options say how long to measure.
type Options struct {
	Rounds   int           // samples per batch size
	Budget   time.Duration // no round begins after it; 0: unbounded. The first round may exceed it
	Sparse   bool          // measure batch sizes 1, 2, 4, … and the largest, and interpolate
	Seed     uint64        // of the order of sizes
	Progress func(round, rounds int)
}

const (
	warmUps      = 3                      // runs of the largest and the smallest batch before the first round
	quickBudget  = 800 * time.Millisecond // leaves room for what is under way within the second that Quick may take
	quickRounds  = 20
	defaultRound = 40
)

// Timer runs a batch with nothing else under way, and says how long it took.
type Timer func(device.Batch) (time.Duration, error)

// On returns a Timer for an executor that nobody else uses.
func On(e device.Runner) Timer {
	return func(b device.Batch) (time.Duration, error) {
		began := time.Now()
		err := device.Execute(e, b)
		return time.Since(began), err
	}
}

// Quick measures what a second allows, or until ctx ends.
func Quick(ctx context.Context, e Timer, m *device.Model, s *device.Slot) (*Result, error) {
	return Run(ctx, e, m, s, Options{Rounds: quickRounds, Budget: quickBudget, Sparse: true})
}

// Run measures m, which e runs on s. Between two batches it ends with ctx.
func Run(ctx context.Context, e Timer, m *device.Model, s *device.Slot, o Options) (*Result, error) {
	if o.Rounds <= 0 {
		o.Rounds = defaultRound
	}

	start := time.Now()
	r := &run{ctx: ctx, e: e, m: m, s: s, o: o, start: start, random: rand.New(rand.NewPCG(o.Seed, 1))}
	r.sizes = batchSizes(m.BatchMax, o.Sparse)
	r.samples = make([][]time.Duration, len(r.sizes))

	if err := r.fillInputs(); err != nil {
		return nil, err
	}

	// First runs allocate and fill caches, so they do not count.
	if err := r.warmUp(); err != nil {
		return nil, err
	}

	// When the budget is used up, what was measured so far is the result.
	for round := range o.Rounds {
		if over, err := r.sampleRound(round); over || err != nil {
			if err != nil {
				return nil, err
			}
			break
		}
		if o.Progress != nil {
			o.Progress(round+1, o.Rounds)
		}
	}

	res := summarizeSamples(r.sizes, r.samples, m.BatchMax)
	res.Elapsed = time.Since(start)
	return res, nil
}

const (
	checkRuns = 5
	tooFast   = 4 // a host that is so many times faster than a profile is another host
)

// Check reports whether p can be this host's profile of m: whether the best of a few runs of the
// smallest and of the largest batch is neither slower than p nor far faster. A lane that runs alone may be slowdown times
// as fast as while all lanes run, of which p is the profile; 1 for a whole device.
func Check(ctx context.Context, e Timer, m *device.Model, s *device.Slot, p *profile.Profile, slowdown int) (bool, error) {
	r := &run{ctx: ctx, e: e, m: m, s: s, random: rand.New(rand.NewPCG(0, 1))}
	if err := r.fillInputs(); err != nil {
		return false, err
	}

	// The best of a few runs: whatever else the host does makes a batch slower, never faster.
	for _, b := range []int{1, m.BatchMax} {
		best := time.Duration(math.MaxInt64)
		for range checkRuns {
			d, err := r.timeBatch(b)
			if err != nil {
				return false, err
			}
			best = min(best, d)
		}

		if l := p.Exec(b); best > l+l/10 || best < l/time.Duration(tooFast*slowdown) {
			return false, nil
		}
	}
	return true, nil
}

// run is one measurement under way.
type run struct {
	ctx     context.Context
	e       Timer
	m       *device.Model
	s       *device.Slot
	o       Options
	start   time.Time
	random  *rand.Rand
	sizes   []int
	samples [][]time.Duration // by index into sizes
}

// batchSizes returns the batch sizes to measure, ascending.
func batchSizes(batchMax int, sparse bool) []int {
	var all []int
	for b := 1; b < batchMax; {
		all = append(all, b)
		if sparse {
			b *= 2
		} else {
			b++
		}
	}
	return append(all, batchMax)
}

// fillInputs puts the model's samples into the slot, or else plausible inputs: numbers that every datatype takes, not all
// equal, since some kernels are faster on zeros.
func (r *run) fillInputs() error {
	if len(r.m.Samples) > 0 {
		return r.m.Fill(r.s)
	}

	for k, t := range r.m.Inputs {
		in := r.s.Input(r.m, k, r.m.BatchMax)
		switch t.Datatype {
		case model.FP32:
			for i := 0; i+4 <= len(in); i += 4 {
				bits := math.Float32bits(r.random.Float32())
				in[i], in[i+1], in[i+2], in[i+3] = byte(bits), byte(bits>>8), byte(bits>>16), byte(bits>>24)
			}
		case model.Uint8:
			for i := range in {
				in[i] = byte(r.random.Uint32())
			}
		default: // zeros are valid indexes, lengths and masks
			clear(in)
		}
	}
	return nil
}

func (r *run) warmUp() error {
	for range warmUps {
		for _, b := range []int{r.m.BatchMax, 1} {
			if _, err := r.timeBatch(b); err != nil {
				return err
			}
			if r.isOver() {
				return nil
			}
		}
	}
	return nil
}

func (r *run) isOver() bool { return r.o.Budget > 0 && time.Since(r.start) > r.o.Budget }

func (r *run) timeBatch(batch int) (time.Duration, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, fmt.Errorf("measure batch size %d: %w", batch, err)
	}

	took, err := r.e(device.Batch{Model: r.m, Slot: r.s, Rows: batch})
	if err != nil {
		return 0, fmt.Errorf("measure batch size %d: %w", batch, err)
	}
	return took, nil
}

// sampleRound takes a sample of every size, and reports whether the budget is used up. The first round
// goes up from 1 and is cut short only between sizes beyond the second.
func (r *run) sampleRound(n int) (over bool, err error) {
	order := make([]int, len(r.sizes))
	for i := range order {
		order[i] = i
	}

	// The first round goes up in order, so that a short budget leaves the sizes from 1 on.
	if n > 0 {
		if r.isOver() {
			return true, nil
		}
		r.random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}

	for _, i := range order {
		// Two sizes make a line, by which the others are filled in.
		if n == 0 && i >= 2 && r.isOver() {
			return true, nil
		}
		d, err := r.timeBatch(r.sizes[i])
		if err != nil {
			return false, err
		}
		r.samples[i] = append(r.samples[i], d)
	}
	return false, nil
}
