//go:build linux

package frontend_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/frontendtest"
)

// memory is a model with a large state. A step adds its x to every byte of the state, and answers with one byte of it
// and whether all are equal.
var memory = frontendtest.Model{Name: "memory", Inputs: bytesTensor("x", 1), Outputs: bytesTensor("y", 2), BatchMax: 4, SLO: 2 * time.Second,
	Sequence: fmt.Sprintf(`max_sequence_idle_microseconds: 60000000
		control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START bool_false_true: [ false, true ] } ] } ]
		state [ { input_name: "old" output_name: "new" data_type: TYPE_UINT8 dims: [ %d ] },
			{ input_name: "steps" output_name: "steps_out" data_type: TYPE_INT32 dims: [ 1 ] } ]`, largeBytes),
	Answer: func(r frontendtest.Row) error {
		x, old, to := r.Input("x").Bytes()[0], r.Input("old").Bytes(), r.Output("new").Bytes()
		alike := byte(1)
		for i := range to {
			if to[i] = old[i] + x; to[i] != to[0] {
				alike = 0
			}
		}
		steps := binary.LittleEndian.Uint32(r.Input("steps").Bytes()) + 1
		binary.LittleEndian.PutUint32(r.Output("steps_out").Bytes(), steps)
		if r.Input("START").Bytes()[0] == 1 != (steps == 1) {
			return errors.New("a first step that is not the first")
		}
		copy(r.Output("y").Bytes(), []byte{to[0], alike})
		return nil
	}}

// stepMemory runs a step of memory.
func stepMemory(ctx context.Context, c *frontend.Client, x byte, s frontend.Sequence) (sum byte, err error) {
	b, err := c.Buffer(1)
	if err != nil {
		return 0, err
	}
	defer b.Free()
	b.Bytes()[0] = x
	r, err := c.Do(ctx, frontend.Request{Model: "memory", Input: b, Sequence: s})
	if err != nil {
		return 0, err
	}
	defer r.Release()
	if len(r.Data) != 2 || r.Data[1] != 1 || r.Held != nil {
		return 0, fmt.Errorf("output % x, held %v: want two bytes, the second 1", r.Data, r.Held)
	}
	return r.Data[0], nil
}

// TestLargeStatesStayWithTheirBackend shows that over each provider the backend of the next step, which may be
// another one, reads the state that a step left.
func TestLargeStatesStayWithTheirBackend(t *testing.T) {
	for _, provider := range []string{"local", "shm", "tcp"} {
		t.Run(provider, func(t *testing.T) {
			data := frontend.DataPlane{Providers: []string{provider}}
			server := frontendtest.StartOver(t, data, memory)
			c := server.ClientOver(t, data)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := c.AwaitModel(ctx, "memory"); err != nil {
				t.Fatal(err)
			}

			// One sequence begins at a single backend and continues at another one.
			all := []frontend.Sequence{{ID: 1}, {ID: 2}}
			sums := make([]byte, len(all))
			run := func(steps int, last bool) {
				for n := range steps {
					for i, s := range all {
						s.Start, s.End = sums[i] == 0, last && n == steps-1
						sums[i] += byte(i + 1)
						if sum, err := stepMemory(ctx, c, byte(i+1), s); err != nil || sum != sums[i] {
							t.Fatalf("sequence %d, step %d: %d, %v; want %d", s.ID, n, sum, err, sums[i])
						}
					}
				}
			}
			run(8, false)
			server.Join(t, "second", memory)
			run(8, true)
			if s := c.Stats(); s.StatesHeld < 8 || s.StatesLost > 0 {
				t.Errorf("of 32 steps %d left their state with the backend, %d states were lost; want 8 or more, and none", s.StatesHeld, s.StatesLost)
			}
		})
	}
}

// TestStatesAreFetchedInTime shows that the state of a pausing sequence is fetched before its backend releases it, or
// dies.
func TestStatesAreFetchedInTime(t *testing.T) {
	server := frontendtest.Start(t, sum)
	leave := server.Join(t, "first", memory)
	c := server.Client(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	beginHeld(ctx, t, c)
	for c.Stats().StatesFetched < c.Stats().StatesHeld {
		if ctx.Err() != nil {
			t.Fatalf("%+v: want all states that are held fetched in time", c.Stats())
		}
		time.Sleep(time.Millisecond)
	}

	leave()
	server.Join(t, "second", memory)
	if sum, err := stepMemory(ctx, c, 1, frontend.Sequence{ID: 7}); sum != 6 || err != nil {
		t.Errorf("%d, %v; want 6", sum, err)
	}
}

// beginHeld begins sequence 7, with a sum of 5, until the state of its first step is held by the backend. No step
// follows one whose state is held.
func beginHeld(ctx context.Context, t *testing.T, c *frontend.Client) {
	t.Helper()
	if _, err := c.AwaitModel(ctx, "memory"); err != nil {
		t.Fatal(err)
	}
	for before := c.Stats().StatesHeld; c.Stats().StatesHeld == before; {
		if _, err := stepMemory(ctx, c, 5, frontend.Sequence{ID: 7, Start: true}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestALostStateIsNamed shows that a step reports a state that was lost with its backend before it was read, and that
// the sequence must begin again.
func TestALostStateIsNamed(t *testing.T) {
	server := frontendtest.Start(t, sum)
	c := server.Client(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	// On a slow machine the state may be fetched before the backend has left. Then it is not lost, and another
	// backend leaves.
	var err error
	leave := server.Join(t, "0", memory)
	for n := 1; err == nil; n++ {
		beginHeld(ctx, t, c)
		leave()
		leave = server.Join(t, fmt.Sprint(n), memory)
		_, err = stepMemory(ctx, c, 1, frontend.Sequence{ID: 7})
	}
	var of *frontend.OutcomeError
	if !errors.As(err, &of) || of.Reason != model.InputUnavailable || !strings.Contains(err.Error(), "its state is lost, it must begin anew") {
		t.Errorf("%v, want input_unavailable that says the state is lost", err)
	}
	if _, err := stepMemory(ctx, c, 1, frontend.Sequence{ID: 7}); !errors.Is(err, frontend.ErrInvalid) || !strings.Contains(err.Error(), "START") {
		t.Errorf("the step after: %v, want that START is missing", err)
	}
	if sum, err := stepMemory(ctx, c, 9, frontend.Sequence{ID: 7, Start: true}); sum != 9 || err != nil {
		t.Errorf("begun anew: %d, %v", sum, err)
	}
	if lost := c.Stats().StatesLost; lost != 1 {
		t.Errorf("%d states were lost, want 1", lost)
	}
}
