package executor

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"downbeat.dev/cuda"
	"downbeat.dev/cuda/layers"
	"downbeat.dev/cuda/residency"
)

// Succeed returns a successor of m: a model that computes the same with the weights of w. m does not change. Both models
// use the same plans, launches and memory for activations. The successor is ready to run: its parameters are on the
// device beside m's, and it has a captured graph for every batch for which m has one. If there is no room for all
// parameters, Succeed evicts nothing, and the successor's first batch loads the rest.
//
// The lock shared guards the Runtime, and the caller must not hold it. Succeed holds the lock for one layer at a time, so
// that batches continue.
func (m *Model) Succeed(w *Weights, shared sync.Locker) (*Model, error) {
	shared.Lock()
	defer shared.Unlock()
	next := &Model{r: m.r, graph: w.graph, real: m.real, slo: m.slo, max: m.max, share: m.share, params: map[string]place{},
		plans: make([]*plan, m.max), shared: shared}

	defer func() { next.shared = nil }()

	err := next.takePlans(m, w)
	if err == nil {
		err = next.bringIn()
	}

	if err == nil {
		err = next.captureAhead(m)
	}

	if err != nil {
		return nil, errors.Join(err, next.Close())
	}
	return next, nil
}

// takePlans gives m the plans of from. The parameters of m get contents of their own.
func (m *Model) takePlans(from *Model, w *Weights) error {
	for _, n := range from.Planned() { // plans that were compiled since w was made
		if !w.seen[n-1] {
			if err := w.addBatch(n); err != nil {
				return err
			}
		}
	}

	moved, err := m.addParameters(from, w)
	if err != nil {
		return err
	}

	for i, p := range from.plans {
		if p != nil {
			m.plans[i] = p.withParameters(w, moved)
		}
	}
	return nil
}

// addParameters adds the parameters of w to the store, packed in contents as the parameters of from are. It returns the
// new content for each old content.
func (m *Model) addParameters(from *Model, w *Weights) (moved map[residency.ID]residency.ID, err error) {
	packed, names := map[residency.ID][]byte{}, map[place]string{}
	for name, at := range from.params {
		if packed[at.content] == nil {
			packed[at.content] = make([]byte, m.r.store.Bytes(at.content))
		}
		copy(packed[at.content][at.offset:], w.data[name]) // counters have no data: they start at zero

		// Layers whose bytes were equal share a content. In w they may differ.
		if other, twice := names[at]; twice && !bytes.Equal(w.data[other], w.data[name]) {
			return nil, fmt.Errorf("parameters %q and %q were the same: %w", other, name, ErrShape)
		}
		names[at] = name
	}

	moved = map[residency.ID]residency.ID{}
	defer func() {
		for name, at := range from.params {
			if id, ok := moved[at.content]; ok {
				m.params[name] = place{id, at.offset}
			}
		}
	}()

	// Sorted, the old contents are in the order of the layers.
	counters, counts := from.params[countersName]
	for _, old := range slices.Sorted(maps.Keys(packed)) {
		c := m.r.store.Describe(old)
		c.Bytes = int64(len(packed[old]))
		add := m.addContent
		if counts && old == counters.content {
			add = m.r.store.Add // every model has its own
		}

		id, err := add(c, packed[old])
		if err != nil {
			return nil, err
		}
		moved[old] = id
	}
	return moved, nil
}

// withParameters returns the plan with other parameters.
func (p *plan) withParameters(w *Weights, moved map[residency.ID]residency.ID) *plan {
	compiled := *p.Plan
	compiled.Params = slices.Clone(p.Params)
	for i := range compiled.Params {
		if data, ok := w.data[compiled.Params[i].Name]; ok {
			compiled.Params[i].Data = data
		}
	}

	// Launches refer to buffers by number, so both plans can use them.
	next := &plan{Plan: &compiled, launches: p.launches, work: p.work, captured: map[key]*captured{}}
	if next.work != nil {
		next.work.users++
	}

	for _, at := range p.params {
		next.params = append(next.params, place{moved[at.content], at.offset})
	}

	next.contents = renumber(p.contents, moved)
	for _, ids := range p.byLayer {
		next.byLayer = append(next.byLayer, renumber(ids, moved))
	}
	return next
}

// renumber returns ids with each moved content replaced by its new one. Contents of activations are not moved.
func renumber(ids []residency.ID, moved map[residency.ID]residency.ID) (all []residency.ID) {
	for _, id := range ids {
		if other, ok := moved[id]; ok {
			id = other
		}
		all = append(all, id)
	}

	return all
}

// bringIn copies parameters to the device until there is no more room.
func (m *Model) bringIn() (failed error) {
	ended, err := m.r.dev.NewEvent()
	if err != nil {
		return err
	}
	defer ended.Free()

	// Graphs expect the activations at one address, so hold their memory while parameters are placed.
	if p := m.plans[m.max-1]; p != nil && p.work != nil {
		fits, err := m.hold(p.work.id, ended)
		if err != nil || !fits {
			return err
		}
		defer func() { failed = errors.Join(failed, m.r.store.Release([]residency.ID{p.work.id}, nil)) }()
	}

	// Release each content at once: a batch that needs its memory may evict it.
	for _, id := range m.parameterContents() {
		fits, err := m.hold(id, ended)
		if fits {
			err = errors.Join(err, m.r.store.Release([]residency.ID{id}, nil))
		}
		if err != nil || !fits {
			return err
		}
	}
	return nil
}

// hold copies a content to the device and marks it as in use, if there is room. It waits until the copy has ended, so that
// a batch, which waits for all earlier copies, waits for one layer at most.
func (m *Model) hold(id residency.ID, ended *cuda.Event) (fits bool, err error) {
	fits, err = m.r.store.Hold(time.Since(m.r.start), id, ended)
	if fits {
		m.yieldRuntime(func() { err = m.r.dev.WaitFor(cmp.Or(m.r.cfg.Hang, moveMost), ended) })
	}
	return fits, err
}

// moveMost is the longest time that the copy of a layer may take, if Config does not set one.
const moveMost = time.Minute

// parameterContents returns the contents of the parameters, in a fixed order.
func (m *Model) parameterContents() []residency.ID {
	seen := map[residency.ID]bool{}
	for _, at := range m.params {
		seen[at.content] = true
	}

	return slices.Sorted(maps.Keys(seen))
}

// captureAhead captures a graph with m's parameters for every batch for which from has a graph.
func (m *Model) captureAhead(from *Model) error {
	for i, p := range from.plans {
		if p == nil || m.plans[i] == nil {
			continue
		}

		for k, c := range maps.Clone(p.captured) { // a clone, because batches of from may add graphs
			base, ok := m.basesLike(m.plans[i], c.base)
			if !ok {
				continue
			}
			if _, err := m.captureGraph(c.stream, m.plans[i], base, k); err != nil {
				return err
			}
			m.yieldRuntime(func() {})
		}
	}
	return nil
}

// basesLike returns the addresses of the buffers of a batch of p: those in like, but for the parameters. It returns false
// if a parameter is not on the device.
func (m *Model) basesLike(p *plan, like []cuda.Address) (base []cuda.Address, ok bool) {
	base = slices.Clone(like)
	for i := range p.Buffers {
		if b := &p.Buffers[i]; b.Kind == layers.Parameter {
			at := p.params[b.Index]
			address := m.r.store.Address(at.content)
			if address == 0 {
				return nil, false
			}
			base[i] = address + cuda.Address(at.offset)
		}
	}
	return base, true
}
