package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	graph "downbeat.dev/core/app"
	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
)

// A large result that only models need stays at the backend that computed it, which offers it to the next backend
// (decision 0210). If the next one cannot read it, the frontend fetches it or has it computed again.
const (
	holdBytes  = 256 << 10        // default of Options.HoldBytes
	plainAfter = 10 * time.Second // how long nothing is held after a backend could not hold or read
	heldMost   = 32               // largest number of inputs and outputs of a model with held outputs
)

// holdOf returns the outputs of a step that backends are asked to hold: large ones that only models take.
func holdOf(g *graph.Graph, j, least int) (mask uint32) {
	s := &g.Steps[j]
	if least < 0 || !isHoldable(s) {
		return 0
	}

	for k, at := range s.Out {
		if at == graph.Single || s.Outputs[k].RowBytes() < least || slices.Contains(g.Answer, at) {
			continue
		}

		// A hook, or the frame's answer, needs the tensor in the frontend, which would have to fetch it.
		taken, byModels := false, true
		for i := range g.Steps {
			if slices.Contains(g.Steps[i].In, at) {
				taken, byModels = true, byModels && isHoldable(&g.Steps[i])
			}
		}

		if taken && byModels {
			mask |= 1 << k
		}
	}

	return mask
}

// isHoldable reports whether a step's inputs may lie at several places: hooks and sequences need them here, and texts
// vary in size.
func isHoldable(s *graph.Step) bool {
	varies := func(t model.Tensor) bool { return t.Varies() }
	return s.Model != "" && !s.Sequence && len(s.Inputs) <= heldMost && len(s.Outputs) <= heldMost && !slices.ContainsFunc(s.Inputs, varies) && !slices.ContainsFunc(s.Outputs, varies)
}

// isComposed reports whether a step's requests name the place of each input.
func (r *run) isComposed(s *step) bool {
	if s.hold != 0 && time.Now().UnixNano() >= s.plain.Load() && r.takePartsAfter(s) {
		return true
	}

	return slices.ContainsFunc(s.In, func(at int) bool { return r.held[at] != nil })
}

// takePartsAfter reports whether the models of a step and of the steps that need it accept inputs from several
// places, as served now.
func (r *run) takePartsAfter(s *step) bool {
	takesParts := func(s *step) bool {
		m := r.app.client.Model(s.Model, s.Version)
		return m != nil && m.TakesParts()
	}
	return takesParts(s) && !slices.ContainsFunc(s.feeds, func(j int) bool {
		next := &r.app.steps[j]
		return next.Model != "" && !takesParts(next)
	})
}

// isComposed reports the same of requests.
func isComposed(calls []frontend.Call) bool { return len(calls) > 0 && calls[0].Parts != nil }

// partsOf returns the inputs of request i of a step.
func (r *run) partsOf(s *step, i int) []frontend.Part {
	// Some elements of a list may be held and others be here: backends hold as many as they can.
	parts := make([]frontend.Part, len(s.In))

	for k, at := range s.In {
		n := r.indexOf(s, at, i)
		if held := r.held[at]; held != nil && held[n] != nil {
			parts[k].Held = held[n]
		} else {
			parts[k].Data = r.values[at][n]
		}
	}

	return parts
}

// noteHeld records which outputs of a step backends hold.
func (r *run) noteHeld(s *step, calls []frontend.Call) {
	// If any element of a list is held, keep a place for every element.
	for i := range calls {
		for k, held := range calls[i].Result.Held {
			if at := s.Out[k]; held != nil && at != graph.Single {
				if r.held[at] == nil {
					r.held[at] = make([]*frontend.Held, len(calls))
				}
				r.held[at][i] = held
			}
		}
	}
}

// isHeldLost reports whether requests failed because an input could not be read from its place.
func isHeldLost(err error) bool {
	var of *frontend.OutcomeError
	return errors.As(err, &of) && of.Reason == model.InputUnavailable
}

// askPlainly asks a step once more, with all its inputs brought here.
func (r *run) askPlainly(ctx context.Context, j, n int) ([]frontend.Call, error) {
	s := &r.app.steps[j]
	here, err := r.regain(ctx, j)
	if err != nil {
		return nil, err
	}

	// If nothing was held, a backend of an earlier version could not read the table of places.
	if len(here) == 0 {
		s.plain.Store(time.Now().Add(plainAfter).UnixNano())
	}

	return r.askCalls(ctx, j, n, here, frontend.Sequence{})
}

// regain brings a step's held inputs here. It does not change the frame, since other steps read it.
func (r *run) regain(ctx context.Context, j int) (map[int]Value, error) {
	here := map[int]Value{}

	for _, at := range r.app.steps[j].In {
		if r.held[at] == nil || here[at] != nil {
			continue
		}

		// Fetching costs one network round trip, computing again a whole stage: try the cheaper one first.
		v, err := r.fetchValue(ctx, at)
		if err != nil {
			v, err = r.remakeValue(ctx, at)
		}
		if err != nil {
			return nil, err
		}
		here[at] = v
		r.app.steps[j].counts.regained.Add(1)
	}

	return here, nil
}

// fetchValue reads a tensor from the backends that hold it.
func (r *run) fetchValue(ctx context.Context, at int) (Value, error) {
	// Keep the elements that are already here.
	v := slices.Clone(r.values[at])

	for i, held := range r.held[at] {
		if held == nil {
			continue
		}
		b, err := held.Fetch(ctx)
		if err != nil {
			return nil, err
		}
		r.mu.Lock()
		r.fetched = append(r.fetched, b)
		r.mu.Unlock()
		v[i] = b.Bytes()
	}

	return v, nil
}

// remakeValue computes a tensor again, after the backend that held it is gone or has released it.
func (r *run) remakeValue(ctx context.Context, at int) (Value, error) {
	// The inputs of that step may be held or gone, too, and are regained in the same way.
	giver := slices.IndexFunc(r.app.graph.Steps, func(s graph.Step) bool { return slices.Contains(s.Out, at) })
	s := &r.app.steps[giver]
	here, err := r.regain(ctx, giver)
	if err != nil {
		return nil, err
	}
	calls, err := r.askCalls(ctx, giver, len(r.values[at]), here, frontend.Sequence{})
	if err != nil {
		return nil, err
	}

	// Nothing was held this time, so all outputs lie one after another.
	v := make(Value, len(calls))

	for i := range calls {
		from := 0
		for k := range s.Outputs {
			n := s.Outputs[k].RowBytes()
			if from+n > len(calls[i].Result.Data) {
				return nil, fmt.Errorf("model %q: %d bytes, fewer than its outputs take: the model has changed", s.Model, len(calls[i].Result.Data))
			}
			if s.Out[k] == at {
				v[i] = calls[i].Result.Data[from : from+n : from+n]
			}
			from += n
		}
	}

	return v, nil
}
