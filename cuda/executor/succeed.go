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

// Succeed returns a model that computes what m does, with the weights of w. m stays as it is; the two have plans, launches
// and the memory of activations in common. The successor is as ready as m: its parameters are on the device beside m's,
// except those for which there is no room without evicting others, and its batches have graphs wherever m's have.
// Its first batch brings in what is missing.
//
// shared guards the Runtime, and the caller does not hold it. Succeed holds it for one layer at a time, so that batches
// continue.
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

// takePlans gives m the plans of from, with contents of its own for the parameters.
func (m *Model) takePlans(from *Model, w *Weights) error {
	for _, n := range from.Planned() { // those compiled meanwhile
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

// addParameters adds w's parameters to the store, packed as those of from, and returns the new content of each old one.
func (m *Model) addParameters(from *Model, w *Weights) (moved map[residency.ID]residency.ID, err error) {
	packed, names := map[residency.ID][]byte{}, map[place]string{}
	for name, at := range from.params {
		if packed[at.content] == nil {
			packed[at.content] = make([]byte, m.r.store.Bytes(at.content))
		}
		copy(packed[at.content][at.offset:], w.data[name]) // none for counters, which start at zero

		// Layers with the same bytes share a content, and may not be the same now.
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

	// In the order of the old ones, which is that of the layers.
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

	// Launches refer to buffers by number, so they are the same.
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

// renumber returns the contents that took the place of ids; activations stay.
func renumber(ids []residency.ID, moved map[residency.ID]residency.ID) (all []residency.ID) {
	for _, id := range ids {
		if other, ok := moved[id]; ok {
			id = other
		}
		all = append(all, id)
	}

	return all
}

// bringIn copies the parameters to the device, as far as there is room.
func (m *Model) bringIn() (failed error) {
	ended, err := m.r.dev.NewEvent()
	if err != nil {
		return err
	}
	defer ended.Free()

	// Activations come and go with batches. Meanwhile nothing else may take their place, where graphs expect them.
	if p := m.plans[m.max-1]; p != nil && p.work != nil {
		fits, err := m.hold(p.work.id, ended)
		if err != nil || !fits {
			return err
		}
		defer func() { failed = errors.Join(failed, m.r.store.Release([]residency.ID{p.work.id}, nil)) }()
	}

	// Each is free to leave again, so that none of them keeps a batch from its memory.
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

// hold puts a content in use on the device, if there is room, and returns when its copy has ended: the next batch waits
// for the moves before it, so for one layer's at most.
func (m *Model) hold(id residency.ID, ended *cuda.Event) (fits bool, err error) {
	fits, err = m.r.store.Hold(time.Since(m.r.start), id, ended)
	if fits {
		m.yieldRuntime(func() { err = m.r.dev.WaitFor(cmp.Or(m.r.cfg.Hang, moveMost), ended) })
	}
	return fits, err
}

// moveMost is the longest copy of a layer, if Config does not say.
const moveMost = time.Minute

// parameterContents returns the contents of the parameters, in a fixed order.
func (m *Model) parameterContents() []residency.ID {
	seen := map[residency.ID]bool{}
	for _, at := range m.params {
		seen[at.content] = true
	}

	return slices.Sorted(maps.Keys(seen))
}

// captureAhead captures the batches that from has graphs of, with m's parameters.
func (m *Model) captureAhead(from *Model) error {
	for i, p := range from.plans {
		if p == nil || m.plans[i] == nil {
			continue
		}

		for k, c := range maps.Clone(p.captured) { // batches of from may add to it meanwhile
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

// basesLike returns the addresses of a batch of p that has everything but its parameters where like has it; false if a
// parameter is not on the device.
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
