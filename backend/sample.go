package backend

import (
	"math"
	"slices"
	"sync/atomic"

	"downbeat.dev/backend/device"
)

// sampler passes on some of the rows of a model's batches.
type sampler struct {
	every  uint64
	seen   atomic.Uint64
	output string
	take   func(Answered)
}

// Answered is a request that a model has answered.
type Answered struct {
	Input   []byte // the first
	Output  []byte // the one that SampleInputs named; empty: the model has none of that name
	Version string // that answered
}

// SampleInputs makes the backend call take with one per every answered requests of a model, of any version. take must
// not block, and must not keep the bytes. A second call for a model replaces the first.
func (b *Backend) SampleInputs(model, output string, every int, take func(Answered)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[string]*sampler{}
	if old := b.samplers.Load(); old != nil {
		for name, s := range *old {
			all[name] = s
		}
	}

	all[model] = &sampler{every: uint64(max(1, every)), output: output, take: take}
	b.samplers.Store(&all) // replaced, never changed: batches read it without a lock
}

// CountAnswers returns a function that returns how many requests of a model have been answered since. The model is
// sampled already, or is counted only.
func (b *Backend) CountAnswers(model string) func() uint64 {
	if all := b.samplers.Load(); all == nil || (*all)[model] == nil {
		b.SampleInputs(model, "", math.MaxInt, func(Answered) {})
	}
	s := (*b.samplers.Load())[model]
	return s.seen.Load
}

// sampleRows passes on rows of a batch that has run.
func (g *gpu) sampleRows(o *order) {
	all := g.backend.samplers.Load()
	if all == nil {
		return
	}

	// A packed row is not an input of fixed size.
	s := (*all)[o.model.Name]
	if s == nil || o.model.Varies || o.run == nil {
		return
	}

	k := slices.IndexFunc(o.model.Outputs, func(t device.Tensor) bool { return t.Name == s.output })
	for i := range o.rows {
		if s.seen.Add(1)%s.every != 0 {
			continue
		}
		a := Answered{Input: o.run.InputRow(o.model, 0, i), Version: o.model.Version}
		if k >= 0 {
			a.Output = o.run.OutputRow(o.model, k, i)
		}
		s.take(a)
	}
}
