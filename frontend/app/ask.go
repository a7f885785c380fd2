package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	graph "downbeat.dev/core/app"
	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
)

// askStep sends a step's requests, one per frame or one per element of its list, and splits their outputs into
// tensors.
func (r *run) askStep(ctx context.Context, j int) error {
	s := &r.app.steps[j]
	n := 1
	if s.List != graph.Single {
		n = len(r.values[s.List])
	}

	// A list without elements makes no requests and gives empty lists.
	if n == 0 {
		for _, at := range s.Out {
			if at != graph.Single {
				r.values[at] = Value{}
			}
		}
		return nil
	}

	if s.Sequence {
		return r.askInTurn(ctx, j)
	}

	// Tensors held at a backend may be gone with it: ask once more, with all inputs brought here.
	calls, err := r.askCalls(ctx, j, n, nil, frontend.Sequence{})
	if isHeldLost(err) && isComposed(calls) && ctx.Err() == nil {
		calls, err = r.askPlainly(ctx, j, n)
	}
	if err != nil {
		return err
	}

	return r.takeApart(s, calls)
}

// askInTurn asks a model with sequences. A session's frames are the steps of one sequence, in the order in which they
// reach the stage. A frame without a session is a sequence of its own.
func (r *run) askInTurn(ctx context.Context, j int) error {
	state := new(stepState)
	if r.stream != nil {
		state = &r.stream.states[j]
	}

	// Use an unguessable name: whoever knows a sequence's name can take its steps.
	name, begun := state.value.(string)
	if !begun {
		name = rand.Text()
	}
	step := frontend.Sequence{Name: name, Start: !begun, End: r.stream == nil}
	calls, err := r.askCalls(ctx, j, 1, nil, step)

	// Start a new sequence if the old one was idle for too long or its version is gone. A dropped frame leaves the
	// sequence unchanged.
	if begun && errors.Is(err, frontend.ErrInvalid) && ctx.Err() == nil {
		step.Start = true
		calls, err = r.askCalls(ctx, j, 1, nil, step)
	}
	if err != nil {
		return err
	}

	state.value = name
	return r.takeApart(&r.app.steps[j], calls)
}

// askCalls sends the requests of a step, of sequence of unless it is zero. With here, which holds the inputs that the
// frame does not have in this process, it asks for no output to be held.
func (r *run) askCalls(ctx context.Context, j, n int, here map[int]Value, of frontend.Sequence) ([]frontend.Call, error) {
	// Calls that were filled before an error have buffers to free, too.
	s := &r.app.steps[j]
	calls, err := r.fillCalls(s, n, here)
	for i := range calls {
		calls[i].Sequence = of
	}
	defer func() {
		for i := range calls {
			if calls[i].Input != nil {
				s.buffers.giveBuffer(calls[i].Input)
			}
		}
	}()
	if err != nil {
		return nil, err
	}

	s.counts.requests.Add(uint64(n))
	if here == nil {
		r.steps[j].Requests += n
	}
	if err := r.app.client.DoWhole(ctx, calls); err != nil {
		return calls, err
	}

	// Tensors point into the results, so the results live as long as the frame.
	r.mu.Lock()
	defer r.mu.Unlock()

	for i := range calls {
		r.results = append(r.results, calls[i].Result)
		if calls[i].Result.Held != nil {
			r.made[j] = append(r.made[j], calls[i].Result)
			s.counts.held.Add(1)
		}
	}

	return calls, nil
}

// fillCalls copies each request's inputs into registered memory, or lists where they lie.
func (r *run) fillCalls(s *step, n int, here map[int]Value) ([]frontend.Call, error) {
	calls := make([]frontend.Call, 0, n)
	floor := r.floorOf(s)
	composed := here == nil && r.isComposed(s)

	for i := range n {
		request := frontend.Request{Model: s.Model, Version: s.Version, Priority: r.priority, AccuracyFloor: floor}

		// A composed request needs no copy: the client sends the local inputs and the places of the others.
		if composed {
			request.Parts, request.Hold = r.partsOf(s, i), s.hold
			calls = append(calls, frontend.Call{Request: request})
			continue
		}

		size := 0
		for _, at := range s.In {
			size += len(r.elementOf(s, at, i, here))
		}
		b, err := s.buffers.takeBuffer(r.app.client, size)
		if err != nil {
			return calls, err
		}

		// Store the buffer before filling it: from here on the caller frees it.
		request.Input = b
		calls = append(calls, frontend.Call{Request: request})
		dst := b.Bytes()[:0]
		for _, at := range s.In {
			dst = append(dst, r.elementOf(s, at, i, here)...)
		}
	}

	return calls, nil
}

// floorOf returns the session's floor for a family. A single model has the accuracy that the application chose.
func (r *run) floorOf(s *step) float64 {
	if r.stream == nil || r.stream.session.Floor == 0 {
		return 0
	}
	if m := r.app.client.Model(s.Model, s.Version); m == nil || !m.IsFamily() {
		return 0
	}

	return r.stream.session.Floor
}

// elementOf returns the part of a tensor for request i of a step: an element of a list, or all of a single tensor.
func (r *run) elementOf(s *step, at, i int, here map[int]Value) []byte {
	v, ok := here[at]
	if !ok {
		v = r.values[at]
	}

	return v[r.indexOf(s, at, i)]
}

// indexOf returns the element index of a tensor for request i of a step. A single tensor goes with every element of
// the list.
func (r *run) indexOf(s *step, at, i int) int {
	if s.List != graph.Single && r.app.graph.Lists[at] == s.List {
		return i
	}

	return 0
}

// takeApart finds the tensors in the outputs, without copying.
func (r *run) takeApart(s *step, calls []frontend.Call) error {
	for _, at := range s.Out {
		if at != graph.Single {
			r.values[at] = make(Value, len(calls))
		}
	}
	r.noteHeld(s, calls)

	// A row's outputs lie one after another, in the model's order.
	for i := range calls {
		rest := calls[i].Result.Data
		for k := range s.Outputs {
			if held := calls[i].Result.Held; held != nil && held[k] != nil {
				continue
			}
			n := s.Outputs[k].RowBytes()
			if s.Outputs[k].Varies() {
				n = model.TextsBytes(rest, s.Outputs[k].RowElements())
			}

			// Check the size: another version may be loaded than the one that the graph was checked against.
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
