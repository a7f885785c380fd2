package backend

import (
	"sync/atomic"
)

// sampler passes on some of the inputs of a model's batches.
type sampler struct {
	every uint64
	seen  atomic.Uint64
	take  func(input []byte)
}

// SampleInputs makes the backend call take with one input per every answered requests of a model, of any version.
// take must not block, and must not keep the bytes. A second call for a model replaces the first.
func (b *Backend) SampleInputs(model string, every int, take func(input []byte)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[string]*sampler{}
	if old := b.samplers.Load(); old != nil {
		for name, s := range *old {
			all[name] = s
		}
	}

	all[model] = &sampler{every: uint64(max(1, every)), take: take}
	b.samplers.Store(&all) // replaced, never changed: batches read it without a lock
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

	for i := range o.rows {
		if s.seen.Add(1)%s.every == 0 {
			s.take(o.run.InputRow(o.model, 0, i))
		}
	}
}
