package executor

import (
	"fmt"

	"downbeat.dev/cuda"
	"downbeat.dev/cuda/layers"
	"downbeat.dev/cuda/residency"
)

// plan is a layers.Plan with the executor's state for it.
type plan struct {
	*layers.Plan
	params   []place          // of each of Params
	contents []residency.ID   // of all layers, without duplicates, then the activations
	byLayer  [][]residency.ID // of each layer
	work     *activations     // nil: none
	launches [][]launch       // of each layer
	captured map[key]*captured
}

// activations are the memory of a batch's intermediates, one content that a model shares with its successors: their
// batches follow each other on one stream.
type activations struct {
	id    residency.ID
	users int // models
}

// key identifies the memory of a batch's tensors: graphs contain addresses.
type key struct{ in, out cuda.Address }

type captured struct {
	graph  *cuda.Graph
	base   []cuda.Address
	stream *cuda.Stream // of its batches
}

// planFor is Plan with the executor's state.
func (m *Model) planFor(batch int) (*plan, error) {
	if batch < 1 || batch > m.max {
		return nil, fmt.Errorf("batch of %d: must be 1 to %d", batch, m.max)
	}
	if p := m.plans[batch-1]; p != nil {
		return p, nil
	}

	// Compilation takes long and uses no state shared by models.
	var compiled *layers.Plan
	var err error
	m.yieldRuntime(func() { compiled, err = layers.Compile(m.graph, batch, m.real) })
	if err != nil {
		return nil, err
	}

	p := &plan{Plan: compiled, captured: map[key]*captured{}}
	if err := m.settleContents(p); err != nil {
		return nil, err
	}

	// A plan without memory is not kept: the next batch of this size tries again.
	m.plans[batch-1] = p
	return p, nil
}

// settleContents adds p's parameters and activations to the store: one content for each layer's.
func (m *Model) settleContents(p *plan) error {
	// Choose first, because this may add a workspace and counters to the plan.
	if err := m.chooseLaunches(p); err != nil {
		return err
	}

	// A parameter that several layers use is packed with the first of them.
	seen := map[residency.ID]bool{}
	for i := range p.Layers {
		l := &p.Layers[i]
		if err := m.packParameters(p.Plan, l); err != nil {
			return err
		}

		// A layer that runs alone needs its own list; a batch needs each content once, whichever layers share it.
		var ids []residency.ID
		for _, k := range l.Params {
			id := m.params[p.Params[k].Name].content
			if !seen[id] {
				seen[id] = true
				p.contents = append(p.contents, id)
			}
			ids = append(ids, id)
		}
		p.byLayer = append(p.byLayer, ids)
	}

	// All layers are packed, so every parameter has its place.
	for k := range p.Params {
		p.params = append(p.params, m.params[p.Params[k].Name])
	}

	if p.ActivationBytes == 0 {
		return nil
	}

	// One block holds all activations of a batch, from Enqueue to Release (E1).
	id, err := m.r.store.Add(residency.Content{Name: m.graph.Name + "/activations", Kind: residency.Intermediates,
		Bytes: p.ActivationBytes, SLO: m.slo}, nil)
	if err != nil {
		return fmt.Errorf("activations of a batch of %d: %w", p.Batch, err)
	}

	p.work = &activations{id, 1}
	p.contents = append(p.contents, id)
	return nil
}

const paramAlign = 256

// packParameters packs the parameters that belong only to this layer into one content.
func (m *Model) packParameters(p *layers.Plan, l *layers.Layer) error {
	var data []byte
	fresh := map[string]int64{}
	for _, k := range l.Params {
		param := &p.Params[k]

		// An earlier layer, or another batch size, has already added this parameter.
		if _, known := m.params[param.Name]; known {
			continue
		}
		if _, twice := fresh[param.Name]; twice {
			continue
		}

		// Kernels read each parameter at a multiple of paramAlign, as if it had its own allocation.
		for len(data)%paramAlign != 0 {
			data = append(data, 0)
		}
		fresh[param.Name] = int64(len(data))
		data = append(data, param.Data...)
	}

	// Other layers hold everything that this one needs.
	if len(data) == 0 {
		return nil
	}

	id, err := m.addContent(residency.Content{Name: m.graph.Name + "/" + l.Name, Kind: residency.Parameters, Bytes: int64(len(data)), SLO: m.slo}, data)
	if err != nil {
		return fmt.Errorf("parameters of layer %q: %w", l.Name, err)
	}

	for name, off := range fresh {
		m.params[name] = place{id, off}
	}
	return nil
}
