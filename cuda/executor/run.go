package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"downbeat.dev/cuda"
	"downbeat.dev/cuda/layers"
	"downbeat.dev/cuda/residency"
)

// Enqueue adds to s the commands on st that compute outputs from inputs for a batch of n. It loads the batch's
// parameters if they are not on the device; they stay until Release. Other batches may be under way, with their
// commands before these on st.
func (m *Model) Enqueue(s *cuda.Submission, st *cuda.Stream, n int, inputs, outputs []cuda.Address) error {
	p, err := m.planFor(n)
	if err != nil {
		return err
	}
	if len(inputs) != len(p.Inputs) || len(outputs) != len(p.Outputs) {
		return fmt.Errorf("%d inputs and %d outputs: the model has %d and %d", len(inputs), len(outputs), len(p.Inputs), len(p.Outputs))
	}

	if err := m.r.store.Acquire(time.Since(m.r.start), p.contents, s, st); err != nil {
		return fmt.Errorf("batch of %d: %w", n, err)
	}

	base := m.bufferBases(p, inputs, outputs)
	if !m.r.cfg.Capture {
		m.addLaunches(s, st, p, base, 0, len(p.Layers))
		return nil
	}

	g, err := m.captureGraph(st, p, base, key{inputs[0], outputs[0]})
	if err != nil {
		// Nothing was enqueued, so release the batch's parameters.
		return errors.Join(err, m.r.store.Release(p.contents, nil))
	}
	s.Graph(st, g)
	return nil
}

// Release ends the batch of n that Enqueue began, which has ended on the device, or will have ended by done.
func (m *Model) Release(n int, done *cuda.Event) error {
	return m.r.store.Release(m.plans[n-1].contents, done)
}

// bufferBases returns the address of each buffer; the result is valid until the next call.
func (m *Model) bufferBases(p *plan, inputs, outputs []cuda.Address) []cuda.Address {
	m.scratch = m.scratch[:0]
	for i := range p.Buffers {
		var a cuda.Address
		switch b := &p.Buffers[i]; b.Kind {
		case layers.Input:
			a = inputs[b.Index]
		case layers.Output:
			a = outputs[b.Index]
		case layers.Parameter:
			// Parameters that are not on the device have no address; Run loads those of one layer at a time.
			at := p.params[b.Index]
			if a = m.r.store.Address(at.content); a != 0 {
				a += cuda.Address(at.offset)
			}
		case layers.Activation:
			if p.work != nil {
				a = m.r.store.Address(p.work.id) + cuda.Address(b.Offset)
			}
		}

		m.scratch = append(m.scratch, a)
	}
	return m.scratch
}

// addLaunches adds the launches of layers from to to−1.
func (m *Model) addLaunches(s *cuda.Submission, st *cuda.Stream, p *plan, base []cuda.Address, from, to int) {
	for i := from; i < to; i++ {
		for j := range p.launches[i] {
			p.launches[i][j].addTo(s, st, base, &m.bound)
		}
	}
}

// addTo adds one launch; bound is room for its parameters.
func (l *launch) addTo(s *cuda.Submission, st *cuda.Stream, base []cuda.Address, bound *[]byte) {
	// Write addresses into a copy: the plan's own parameters serve every batch.
	*bound = append((*bound)[:0], l.Params...)
	l.Bind(*bound, base)
	s.Launch(st, l.kernel, l.Grid, l.Block, l.Shared, *bound)
}

// graphsMax bounds the graphs of one plan: one for each slot that batches use in turn.
const graphsMax = 16

// captureGraph returns the graph for these addresses, and captures it again if one of them moved (E2).
func (m *Model) captureGraph(st *cuda.Stream, p *plan, base []cuda.Address, k key) (*cuda.Graph, error) {
	c := p.captured[k]
	if c != nil && slices.Equal(c.base, base) {
		return c.graph, nil
	}

	// A graph contains the addresses of its capture, so this one cannot run any more.
	if c != nil || len(p.captured) >= graphsMax {
		forgetGraph(p, k)
	}

	var s cuda.Submission
	m.addLaunches(&s, st, p, base, 0, len(p.Layers))
	g, err := m.r.dev.Capture(st, &s)
	if err != nil {
		return nil, fmt.Errorf("capture a batch of %d: %w", p.Batch, err)
	}

	p.captured[k] = &captured{graph: g, base: slices.Clone(base), stream: st}
	return g, nil
}

// forgetGraph frees the graph of k, or all graphs if there are too many. The driver lets a running graph finish
// before it destroys it.
func forgetGraph(p *plan, k key) {
	for other, c := range p.captured {
		if other == k || len(p.captured) >= graphsMax {
			c.graph.Free()
			delete(p.captured, other)
		}
	}
}

// Action is Run's next action after a layer.
type Action uint8

// The actions.
const (
	Continue Action = iota
	Stop            // an early exit: later layers do not run
)

// Hook is called on the submitting goroutine when a layer is complete on the device, with its duration there. It may
// run other models on the device before it returns: that is preemption at a layer boundary.
type Hook func(layer int, l *layers.Layer, took time.Duration) Action

// Run runs a batch layer by layer and waits for it. It returns the number of layers that ran; outputs whose layer
// (layers.Tensor.Layer) is below that are complete. A model whose parameters do not fit in device memory at once also
// runs, and each layer's parameters are loaded in turn.
func (m *Model) Run(ctx context.Context, st *cuda.Stream, n int, inputs, outputs []cuda.Address, hook Hook) (ran int, err error) {
	p, err := m.planFor(n)
	if err != nil {
		return 0, err
	}
	if len(inputs) != len(p.Inputs) || len(outputs) != len(p.Outputs) {
		return 0, fmt.Errorf("%d inputs and %d outputs: the model has %d and %d", len(inputs), len(outputs), len(p.Inputs), len(p.Outputs))
	}

	var ev [2]*cuda.Event
	for i := range ev {
		if ev[i], err = m.r.dev.NewEvent(); err != nil {
			return 0, err
		}
		defer ev[i].Free()
	}

	r := run{m: m, p: p, st: st, inputs: inputs, outputs: outputs, from: ev[0], to: ev[1], hook: hook}
	return r.runLayers(ctx)
}

// run is one call of Run.
type run struct {
	m               *Model
	p               *plan
	st              *cuda.Stream
	inputs, outputs []cuda.Address
	from, to        *cuda.Event
	hook            Hook
	s               cuda.Submission
}

func (r *run) runLayers(ctx context.Context) (ran int, err error) {
	// Load all parameters of a model that fits; otherwise load each layer's parameters in turn.
	whole := r.acquireContents(r.p.contents)
	switch {
	case whole == nil:
		defer func() { err = errors.Join(err, r.m.r.store.Release(r.p.contents, nil)) }()
	case !errors.Is(whole, residency.ErrDoesNotFit):
		return 0, whole
	case r.p.work != nil: // the activations must stay; parameters are loaded and evicted
		if err := r.acquireContents([]residency.ID{r.p.work.id}); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, r.m.r.store.Release([]residency.ID{r.p.work.id}, nil)) }()
	}

	for i := range r.p.Layers {
		action, err := r.runLayer(ctx, i, whole != nil)
		if err != nil {
			return i, fmt.Errorf("layer %d %q: %w", i, r.p.Layers[i].Name, err)
		}
		if action == Stop {
			return i + 1, nil
		}
	}
	return len(r.p.Layers), nil
}

func (r *run) acquireContents(ids []residency.ID) error {
	return r.m.r.store.Acquire(time.Since(r.m.r.start), ids, &r.s, r.st)
}

// runLayer runs one layer and its hook; alone means that its parameters are loaded for this layer only.
func (r *run) runLayer(ctx context.Context, i int, alone bool) (action Action, err error) {
	if alone {
		if err := r.acquireContents(r.p.byLayer[i]); err != nil {
			return Stop, err
		}
		defer func() { err = errors.Join(err, r.m.r.store.Release(r.p.byLayer[i], nil)) }()
	}

	// Record after the wait for parameters, so that the time is the layer's own.
	r.s.Record(r.st, r.from)
	r.m.addLaunches(&r.s, r.st, r.p, r.m.bufferBases(r.p, r.inputs, r.outputs), i, i+1)
	r.s.Record(r.st, r.to)

	err = r.m.r.dev.Submit(&r.s)
	r.s.Reset()
	if err == nil {
		err = r.m.r.dev.Wait(ctx, r.to)
	}

	if err != nil || r.hook == nil {
		return Continue, err
	}

	took, err := r.m.r.dev.Elapsed(r.from, r.to)
	if err != nil {
		return Stop, err
	}
	return r.hook(i, &r.p.Layers[i], took), nil
}
