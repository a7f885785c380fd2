package frontend_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/internal/echo"
)

func whole(n int32) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(n)) }

// counter is a model whose sequences add up their inputs, beginning at 100. Its second output shows the controls.
func counter(version string, idle time.Duration) model.Info {
	one := func(name string, of model.Datatype) model.Tensor {
		return model.Tensor{Name: name, Datatype: of, Shape: []int64{1}}
	}
	control := func(name string, kind model.ControlKind) model.Control {
		return model.Control{Input: name, Kind: kind, False: whole(-1), True: whole(1)}
	}
	return model.Info{ID: uint32(version[0]), Name: "counter", Version: version, SLO: int64(10 * time.Minute), BatchMax: 8, Ready: true, Platform: "test",
		Inputs:  []model.Tensor{one("x", model.Int32), one("START", model.Int32), one("END", model.Int32), one("READY", model.Int32), one("CORRID", model.Uint64), one("S", model.Int32)},
		Outputs: []model.Tensor{one("y", model.Int32), {Name: "seen", Datatype: model.Uint8, Shape: []int64{20}}, one("S_OUT", model.Int32)},
		Sequence: &model.Sequence{Idle: int64(idle),
			Controls: []model.Control{control("START", model.ControlStart), control("END", model.ControlEnd), control("READY", model.ControlReady), {Input: "CORRID", Kind: model.ControlID}},
			States:   []model.State{{Input: "S", Output: "S_OUT", Initial: whole(100)}}}}
}

// count computes counter's outputs.
func count(_ wire.Submit, in []byte) ([]byte, model.Reason) {
	le := binary.LittleEndian
	if len(in) != 28 {
		return nil, model.ExecutionFailed
	}
	sum := le.Uint32(in) + le.Uint32(in[24:])
	out := le.AppendUint32(nil, sum)
	out = append(out, in[4:24]...)
	return le.AppendUint32(out, sum), model.ReasonNone
}

func openCounter(t *testing.T, idle time.Duration, answer echo.Answer) (*frontend.Client, *echo.System) {
	t.Helper()
	s, err := echo.New([]model.Info{counter("1", idle)}, answer)
	if err != nil {
		t.Fatal(err)
	}
	c, err := frontend.Dial(context.Background(), frontend.Options{Scheduler: s.Addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	})
	return c, s
}

// step runs a step and returns the sum, and START, END, READY and CORRID as the model saw them.
func step(c *frontend.Client, x int32, s frontend.Sequence) (sum int32, seen string, err error) {
	b, err := c.Buffer(4)
	if err != nil {
		return 0, "", err
	}
	defer b.Free()
	copy(b.Bytes(), whole(x))
	r, err := c.Do(context.Background(), frontend.Request{Model: "counter", Input: b, Sequence: s})
	if err != nil {
		return 0, "", err
	}
	defer r.Release()
	if len(r.Data) != 24 {
		return 0, "", fmt.Errorf("%d bytes of output, want 24: callers do not see states", len(r.Data))
	}
	le := binary.LittleEndian
	return int32(le.Uint32(r.Data)), fmt.Sprint(int32(le.Uint32(r.Data[4:])), int32(le.Uint32(r.Data[8:])), int32(le.Uint32(r.Data[12:])), le.Uint64(r.Data[16:])), nil
}

// TestSequencesKeepTheirState shows that each sequence has its own state from step to step, and that the model is
// told the position of a step in its sequence.
func TestSequencesKeepTheirState(t *testing.T) {
	c, _ := openCounter(t, time.Hour, count)
	m := c.Model("counter", "")
	if len(m.Inputs) != 1 || len(m.Outputs) != 2 || m.InputBytes != 4 || m.OutputBytes != 24 {
		t.Errorf("%d inputs of %d bytes, %d outputs of %d: want the ones that callers give and see", len(m.Inputs), m.InputBytes, len(m.Outputs), m.OutputBytes)
	}

	first, second := frontend.Sequence{ID: 7}, frontend.Sequence{ID: 1 << 40}
	for i, want := range []struct {
		s    frontend.Sequence
		x    int32
		sum  int32
		seen string
	}{
		{frontend.Sequence{ID: first.ID, Start: true}, 1, 101, "1 -1 1 7"},
		{frontend.Sequence{ID: second.ID, Start: true}, 10, 110, "1 -1 1 1099511627776"},
		{first, 2, 103, "-1 -1 1 7"},
		{second, 20, 130, "-1 -1 1 1099511627776"},
		{frontend.Sequence{ID: first.ID, End: true}, 3, 106, "-1 1 1 7"},
		{frontend.Sequence{ID: second.ID, Start: true}, 5, 105, "1 -1 1 1099511627776"}, // begins again
		{frontend.Sequence{ID: first.ID, Start: true, End: true}, 4, 104, "1 1 1 7"},
		{second, 5, 110, "-1 -1 1 1099511627776"},
	} {
		sum, seen, err := step(c, want.x, want.s)
		if err != nil || sum != want.sum || seen != want.seen {
			t.Errorf("step %d: %d, %s, %v; want %d, %s", i, sum, seen, err, want.sum, want.seen)
		}
	}
}

// TestBadSteps shows that every invalid step is refused with its name, and affects no other step.
func TestBadSteps(t *testing.T) {
	c, s := openCounter(t, time.Hour, count)
	if _, _, err := step(c, 1, frontend.Sequence{ID: 5, Start: true}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := step(c, 1, frontend.Sequence{ID: 6, Start: true, End: true}); err != nil {
		t.Fatal(err)
	}
	for want, bad := range map[string]frontend.Sequence{
		"sequence 9 to model 'counter' must specify the START flag":             {ID: 9},
		"sequence 6 to model 'counter' must specify the START flag":             {ID: 6, End: true}, // ended twice
		"must specify a non-zero or non-empty correlation ID":                   {Start: true},
		"want a number, or a name of at most 128 bytes":                         {ID: 1, Name: "x"},
		`sequence 1, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx": want a number`: {ID: 1, Name: strings.Repeat("x", 200)},
		"sequence name: the model wants a number of 64 bits":                    {Name: "name", Start: true},
	} {
		if _, _, err := step(c, 1, bad); !errors.Is(err, frontend.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want one that says %q", bad, err, want)
		}
	}
	if _, err := c.InferCopy(context.Background(), "counter", whole(1)); !errors.Is(err, frontend.ErrInvalid) || !strings.Contains(err.Error(), "want Sequence of each request") {
		t.Errorf("a request of no sequence: %v", err)
	}
	b, err := c.Buffer(3)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()
	if _, err := c.Do(context.Background(), frontend.Request{Model: "counter", Input: b, Sequence: frontend.Sequence{ID: 5}}); !errors.Is(err, frontend.ErrInvalid) {
		t.Errorf("an input of 3 bytes: %v", err)
	}
	if sum, _, err := step(c, 1, frontend.Sequence{ID: 5}); sum != 102 || err != nil {
		t.Errorf("%d, %v; want the sequence as it was, 102", sum, err)
	}

	// A model without sequences, and one whose version no longer exists.
	s.Return([]model.Info{double})
	b4, err := c.Buffer(4)
	if err != nil {
		t.Fatal(err)
	}
	defer b4.Free()
	if _, err := c.Do(context.Background(), frontend.Request{Model: "double", Input: b4, Sequence: frontend.Sequence{ID: 5}}); !errors.Is(err, frontend.ErrInvalid) || !strings.Contains(err.Error(), "the model keeps no sequences") {
		t.Errorf("a model without sequences: %v", err)
	}
	old := counter("1", time.Hour)
	old.Ready = false
	s.Return([]model.Info{old, counter("2", time.Hour)})
	if _, _, err := step(c, 1, frontend.Sequence{ID: 5}); !errors.Is(err, frontend.ErrInvalid) || !strings.Contains(err.Error(), "its state is of version 1, which is not served any more") {
		t.Errorf("a state of another version: %v", err)
	}
	if sum, _, err := step(c, 1, frontend.Sequence{ID: 5, Start: true}); sum != 101 || err != nil {
		t.Errorf("begun anew on version 2: %d, %v", sum, err)
	}
}

// TestIdleSequencesEnd shows that a sequence without a step for longer than its model allows has ended.
func TestIdleSequencesEnd(t *testing.T) {
	c, _ := openCounter(t, time.Nanosecond, count)
	if _, _, err := step(c, 1, frontend.Sequence{ID: 5, Start: true}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Millisecond)
	if _, _, err := step(c, 1, frontend.Sequence{ID: 5}); err == nil || !strings.Contains(err.Error(), "START") {
		t.Errorf("after its idle time: %v", err)
	}
}

// TestFailedStepsLeaveTheState shows that a step without an answer may be sent again, and that a first step that
// fails begins nothing.
func TestFailedStepsLeaveTheState(t *testing.T) {
	var failing atomic.Bool
	c, _ := openCounter(t, time.Hour, func(w wire.Submit, in []byte) ([]byte, model.Reason) {
		if failing.Load() {
			return nil, model.ExecutionFailed
		}
		return count(w, in)
	})
	var outcome *frontend.OutcomeError
	failing.Store(true)
	if _, _, err := step(c, 1, frontend.Sequence{ID: 5, Start: true}); !errors.As(err, &outcome) {
		t.Errorf("%v, want an outcome", err)
	}
	failing.Store(false)
	if _, _, err := step(c, 1, frontend.Sequence{ID: 5}); !errors.Is(err, frontend.ErrInvalid) {
		t.Errorf("a sequence that never began: %v", err)
	}
	if _, _, err := step(c, 1, frontend.Sequence{ID: 5, Start: true}); err != nil {
		t.Fatal(err)
	}
	failing.Store(true)
	if _, _, err := step(c, 10, frontend.Sequence{ID: 5, End: true}); !errors.As(err, &outcome) {
		t.Errorf("%v, want an outcome", err)
	}
	failing.Store(false)
	if sum, _, err := step(c, 10, frontend.Sequence{ID: 5, End: true}); sum != 111 || err != nil {
		t.Errorf("%d, %v; want 111 of the step that is asked for again", sum, err)
	}
}

// TestWaitingStepsEndAsTheirContextDoes shows that a step that waits for its turn ends as dropped when its deadline
// passes and as canceled when its caller gives up, and says what it waited for. The sequence continues without it.
func TestWaitingStepsEndAsTheirContextDoes(t *testing.T) {
	var slow atomic.Bool
	reached, release := make(chan struct{}), make(chan struct{})
	c, _ := openCounter(t, time.Hour, func(w wire.Submit, in []byte) ([]byte, model.Reason) {
		if slow.Load() {
			reached <- struct{}{}
			<-release
		}
		return count(w, in)
	})
	if _, _, err := step(c, 1, frontend.Sequence{ID: 5, Start: true}); err != nil {
		t.Fatal(err)
	}

	slow.Store(true)
	var before sync.WaitGroup
	before.Go(func() {
		if sum, _, err := step(c, 2, frontend.Sequence{ID: 5}); sum != 103 || err != nil {
			t.Errorf("the step before: %d, %v; want 103", sum, err)
		}
	})
	<-reached
	slow.Store(false)

	wait := func(ctx context.Context) (*frontend.OutcomeError, error) {
		b, err := c.Buffer(4)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Free()
		_, err = c.Do(ctx, frontend.Request{Model: "counter", Input: b, Sequence: frontend.Sequence{ID: 5}})
		var of *frontend.OutcomeError
		if !errors.As(err, &of) || !strings.Contains(err.Error(), "sequence 5: the step before it has not ended") {
			t.Fatalf("%v, want an outcome that names what it waited for", err)
		}
		return of, err
	}
	late, cancelLate := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancelLate()
	if of, err := wait(late); of.Reason != model.DeadlineCannotBeMet || !errors.Is(err, frontend.ErrDropped) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("its deadline passed: %v", err)
	}
	gone, giveUp := context.WithCancel(t.Context())
	time.AfterFunc(5*time.Millisecond, giveUp)
	if of, err := wait(gone); of.Reason != model.Canceled || !errors.Is(err, frontend.ErrCanceled) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("its caller gave up: %v", err)
	}

	close(release)
	before.Wait()
	if sum, _, err := step(c, 3, frontend.Sequence{ID: 5}); sum != 106 || err != nil {
		t.Errorf("the step after: %d, %v; want 106", sum, err)
	}
}

// TestStepsRunInTurn shows that concurrent steps of one sequence run one after another, and steps of other sequences
// beside them.
func TestStepsRunInTurn(t *testing.T) {
	var running [4]atomic.Int32
	c, _ := openCounter(t, time.Hour, func(w wire.Submit, in []byte) ([]byte, model.Reason) {
		of := &running[binary.LittleEndian.Uint64(in[16:])]
		if of.Add(1) > 1 {
			return nil, model.ExecutionFailed
		}
		defer of.Add(-1)
		return count(w, in)
	})
	var wait sync.WaitGroup
	for id := range uint64(4) {
		if id == 0 {
			continue
		}
		if _, _, err := step(c, 0, frontend.Sequence{ID: id, Start: true}); err != nil {
			t.Fatal(err)
		}
		for range 50 {
			wait.Go(func() {
				if _, _, err := step(c, 1, frontend.Sequence{ID: id}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wait.Wait()
	for id := range uint64(4) {
		if id == 0 {
			continue
		}
		if sum, _, err := step(c, 0, frontend.Sequence{ID: id, End: true}); sum != 150 || err != nil {
			t.Errorf("sequence %d: %d, %v; want 150", id, sum, err)
		}
	}
}
