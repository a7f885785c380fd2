package frontend

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// The large state of a sequence stays on the backend that computed it, and the next step's backend reads it from
// there, one-sidedly (decisions 0210, 0247). The client fetches it before its lease ends, so it is lost only if the
// backend dies.
const (
	stateBytes = 256 << 10        // default of Options.HoldBytes
	fetchAfter = holdFor / 2      // since the last step; a lease lasts for at least holdFor
	plainAfter = 10 * time.Second // pause in holding after a backend could not
)

// heldStates are the states that one step left on its backend.
type heldStates struct {
	held  []*Held // by state; nil: the sequence has it
	row   *heldRow
	timer *time.Timer

	begun   atomic.Bool   // a fetch has started
	done    chan struct{} // closed when fetched, or err, is set
	fetched [][]byte      // by state
	err     error
}

// largeStates returns a bit for each output that is a state of at least this size, for a model whose requests may
// have Parts. A negative size means none.
func (m *Model) largeStates(least int) (hold uint32) {
	if least < 0 || !m.TakesParts() || len(m.Outputs)+len(m.Sequence.States) > wire.PartsMax || len(m.Inputs)+len(m.hidden) > wire.PartsMax {
		return 0
	}

	for i := range m.Sequence.States {
		if m.stateTensor(i).RowBytes() >= least {
			hold |= 1 << (len(m.Outputs) + i)
		}
	}
	return hold
}

// stateTensor returns the input of a state; its output has the same description.
func (m *Model) stateTensor(i int) *model.Tensor { return &m.hidden[len(m.Sequence.Controls)+i] }

// runComposed runs a step whose inputs may lie in several places, and makes its backend hold large states.
func (c *Client) runComposed(ctx context.Context, s *sequence, m *Model, r Request, hold uint32) (Result, error) {
	// Each of the caller's tensors is a part: the table locates each input.
	rest := r.Input.Bytes()

	for i := range m.Inputs {
		n := m.Inputs[i].RowBytes()
		r.Parts, rest = append(r.Parts, Part{Data: rest[:n:n]}), rest[n:]
	}
	hidden, err := s.hiddenInputs(m, &r)
	if err != nil {
		return Result{}, err
	}

	// Nobody reads the state after a last step.
	if r.Parts, r.Input = append(r.Parts, hidden...), nil; !r.Sequence.End {
		r.Hold = hold
	}
	return c.Do(ctx, r)
}

// hiddenInputs returns the inputs of a step that callers do not provide: controls, then states.
func (s *sequence) hiddenInputs(m *Model, r *Request) ([]Part, error) {
	var parts []Part

	// READY marks rows without a request; batches have no such rows.
	yes := map[model.ControlKind]bool{model.ControlStart: r.Sequence.Start, model.ControlEnd: r.Sequence.End, model.ControlReady: true}
	for i := range m.Sequence.Controls {
		k := &m.Sequence.Controls[i]
		switch {
		case k.Kind == model.ControlID:
			size := m.hidden[i].Datatype.Size()
			if r.Sequence.ID == 0 || size == 4 && r.Sequence.ID>>32 > 0 {
				return nil, fmt.Errorf("%w: model %q: sequence %v: the model wants a number of %d bits", ErrInvalid, m.Name, r.Sequence, 8*size)
			}
			parts = append(parts, Part{Data: binary.LittleEndian.AppendUint64(nil, r.Sequence.ID)[:size]})
		case yes[k.Kind]:
			parts = append(parts, Part{Data: k.True})
		default:
			parts = append(parts, Part{Data: k.False})
		}
	}

	// A sequence without a state yet starts with the initial one.
	for i := range m.Sequence.States {
		switch initial := m.Sequence.States[i].Initial; {
		case s.held != nil && s.held.held[i] != nil:
			parts = append(parts, Part{Held: s.held.held[i]})
		case s.state != nil:
			parts = append(parts, Part{Data: s.state[i]})
		case initial != nil:
			parts = append(parts, Part{Data: initial})
		default:
			parts = append(parts, Part{Data: make([]byte, m.stateTensor(i).RowBytes())})
		}
	}
	return parts, nil
}

// keepState takes the states of a step out of its result; those of a last step are dropped. The caller holds the
// turn.
func (c *Client) keepState(s *sequence, m *Model, result *Result, last bool) error {
	// Held states did not come with the message.
	held := &heldStates{held: make([]*Held, len(m.Sequence.States)), done: make(chan struct{})}
	want := m.fullOutput
	for i := range held.held {
		if result.Held == nil {
			break
		}
		if h := result.Held[len(m.Outputs)+i]; h != nil {
			held.held[i], held.row = h, h.of
			want -= m.stateTensor(i).RowBytes()
		}
	}

	if len(result.Data) != want {
		return fmt.Errorf("output of %d bytes: want %d", len(result.Data), want)
	}

	// The visible outputs come first, then the states.
	rest := result.Data[m.OutputBytes:]
	result.Data, result.Held = result.Data[:m.OutputBytes:m.OutputBytes], nil
	s.dropHeld()
	if last {
		if held.row != nil {
			held.row.freeRow()
		}
		return nil
	}

	if s.state == nil {
		s.state = make([][]byte, len(held.held))
	}

	for i, h := range held.held {
		if h == nil {
			n := m.stateTensor(i).RowBytes()
			s.state[i], rest = append(s.state[i][:0], rest[:n]...), rest[n:]
		}
	}

	if held.row == nil {
		return nil
	}

	s.held = held
	c.stats.statesHeld.Add(1)

	held.timer = time.AfterFunc(fetchAfter, func() { c.fetchStates(held) })
	return nil
}

// dropHeld releases the last step's held states: the next step has read them, or there is none.
func (s *sequence) dropHeld() {
	if s.held == nil {
		return
	}
	s.held.timer.Stop()

	s.held.row.freeRow()
	s.held = nil
}

// fetchStates starts to read the held states; done signals the end. A second call does nothing.
func (c *Client) fetchStates(h *heldStates) {
	if h.begun.CompareAndSwap(false, true) {
		go c.readStates(h)
	}
}

// readStates reads the held states into this process and releases them.
func (c *Client) readStates(h *heldStates) {
	defer close(h.done)
	h.fetched = make([][]byte, len(h.held))

	for i, held := range h.held {
		if held == nil {
			continue
		}
		b, err := held.Fetch(context.Background())
		if err != nil {
			h.err = err
			return
		}
		h.fetched[i] = append([]byte(nil), b.Bytes()...)
		b.Free()
	}

	h.row.freeRow()
	c.stats.statesFetched.Add(1)
}

// bringState fetches a sequence's held state. If it is lost, the sequence has ended. The caller holds the turn.
func (c *Client) bringState(ctx context.Context, s *sequence, r *Request) error {
	if s.held == nil {
		return nil
	}

	// The state is kept for a later step, however long this step's caller waits.
	began := c.now()
	c.fetchStates(s.held)
	select {
	case <-s.held.done:
	case <-ctx.Done():
		return c.endOfWait(ctx, r, began, "its state has not come from the backend that holds it")
	}
	if err := s.held.err; err != nil {
		s.dropHeld()
		s.ended = true
		c.stats.statesLost.Add(1)
		return &OutcomeError{Reason: model.InputUnavailable, Model: r.Model, Local: true,
			Cause: fmt.Errorf("sequence %v: its state is lost, it must begin anew: %w", r.Sequence, err)}
	}

	for i, data := range s.held.fetched {
		if data != nil {
			s.state[i] = data
		}
	}
	s.held.timer.Stop()
	s.held = nil
	return nil
}
