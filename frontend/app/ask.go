package app

import (
	"context"
	"fmt"

	graph "downbeat.dev/core/app"
	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
)

// askStep sends a step's requests, one for a frame or one for each element of its list, and takes their outputs apart.
func (r *run) askStep(ctx context.Context, j int) error {
	s := &r.app.steps[j]
	n := 1
	if s.List != graph.Single {
		n = len(r.values[s.List])
	}

	// A list without elements leaves nothing to ask, and lists without elements to those behind.
	if n == 0 {
		for _, at := range s.Out {
			if at != graph.Single {
				r.values[at] = Value{}
			}
		}
		return nil
	}

	// Calls that were filled before an error have buffers, too.
	calls, err := r.fillCalls(s, n)
	defer func() {
		for i := range calls {
			s.buffers.giveBuffer(calls[i].Input)
		}
	}()
	if err != nil {
		return err
	}

	s.counts.requests.Add(uint64(n))
	r.steps[j].Requests += n
	if err := r.app.client.DoWhole(ctx, calls); err != nil {
		return err
	}

	// Outputs are used where they lie, so that the results live as long as the frame.
	r.mu.Lock()
	for i := range calls {
		r.results = append(r.results, calls[i].Result)
	}
	r.mu.Unlock()
	return r.takeApart(s, calls)
}

// fillCalls copies what each request needs into registered memory.
func (r *run) fillCalls(s *step, n int) ([]frontend.Call, error) {
	calls := make([]frontend.Call, 0, n)
	floor := r.floorOf(s)
	for i := range n {
		size := 0
		for _, at := range s.In {
			size += len(r.elementOf(s, at, i))
		}
		b, err := s.buffers.takeBuffer(r.app.client, size)
		if err != nil {
			return calls, err
		}

		// Listed before it is filled: from here on the caller gives it back.
		calls = append(calls, frontend.Call{Request: frontend.Request{Model: s.Model, Version: s.Version, Input: b, Priority: r.priority, AccuracyFloor: floor}})
		dst := b.Bytes()[:0]
		for _, at := range s.In {
			dst = append(dst, r.elementOf(s, at, i)...)
		}
	}
	return calls, nil
}

// floorOf is the session's floor where a family answers: other models have one accuracy, which the application chose.
func (r *run) floorOf(s *step) float64 {
	if r.stream == nil || r.stream.session.Floor == 0 {
		return 0
	}
	if m := r.app.client.Model(s.Model, s.Version); m == nil || !m.IsFamily() {
		return 0
	}
	return r.stream.session.Floor
}

// elementOf is what request i of a step takes of a tensor: an element of a list, or all of a single tensor.
func (r *run) elementOf(s *step, at, i int) []byte {
	// A single tensor goes with every element of the list.
	if s.List != graph.Single && r.app.graph.Lists[at] == s.List {
		return r.values[at][i]
	}
	return r.values[at][0]
}

// takeApart finds the tensors in the outputs, where they lie.
func (r *run) takeApart(s *step, calls []frontend.Call) error {
	for _, at := range s.Out {
		if at != graph.Single {
			r.values[at] = make(Value, len(calls))
		}
	}

	// A row's outputs lie behind each other, in the model's order.
	for i := range calls {
		rest := calls[i].Result.Data
		for k := range s.Outputs {
			n := s.Outputs[k].RowBytes()
			if s.Outputs[k].Varies() {
				n = model.TextsBytes(rest, s.Outputs[k].RowElements())
			}

			// The graph was checked against the model as it was then: another one may be loaded by now.
			if n < 0 || n > len(rest) {
				return fmt.Errorf("model %q: output %q: ends within %d bytes: the model has changed", s.Model, s.Outputs[k].Name, len(calls[i].Result.Data))
			}

			if at := s.Out[k]; at != graph.Single {
				r.values[at][i] = rest[:n:n]
			}
			rest = rest[n:]
		}
		if len(rest) > 0 {
			return fmt.Errorf("model %q: %d bytes more than its outputs take: the model has changed", s.Model, len(rest))
		}
	}
	return nil
}
