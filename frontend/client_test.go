package frontend_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/internal/echo"
	"downbeat.dev/rdma"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// double has a deadline that no host stands still for.
var double = model.Info{ID: 7, Name: "double", Version: "1", SLO: int64(10 * time.Minute), BatchMax: 8, Ready: true, Platform: "test",
	Inputs: []model.Tensor{{Name: "x", Datatype: "UINT8", Shape: []int64{4}}}, Outputs: []model.Tensor{{Name: "y", Datatype: "UINT8", Shape: []int64{4}}}}

// doubled answers with every byte doubled.
func doubled(_ wire.Submit, in []byte) ([]byte, model.Reason) {
	out := make([]byte, len(in))
	for i, v := range in {
		out[i] = 2 * v
	}
	return out, model.ReasonNone
}

func open(t testing.TB, answer echo.Answer, o frontend.Options, models ...model.Info) (*frontend.Client, *echo.System) {
	t.Helper()
	if len(models) == 0 {
		models = []model.Info{double}
	}
	s, err := echo.New(models, answer)
	if err != nil {
		t.Fatal(err)
	}
	o.Scheduler = s.Addr
	c, err := frontend.Dial(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, s
}

func input(t testing.TB, c *frontend.Client, content ...byte) *frontend.Buffer {
	t.Helper()
	b, err := c.Buffer(len(content))
	if err != nil {
		t.Fatal(err)
	}
	copy(b.Bytes(), content)
	t.Cleanup(b.Free)
	return b
}

func TestInfer(t *testing.T) {
	c, _ := open(t, doubled, frontend.Options{})
	b := input(t, c, 1, 2, 3, 4)
	for range 3 {
		r, err := c.Infer(context.Background(), "double", b)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(r.Data, []byte{2, 4, 6, 8}) || r.Slack <= 0 || r.Exec != time.Microsecond {
			t.Errorf("result %+v", r)
		}
		r.Release()
	}
	r, err := c.InferCopy(context.Background(), "double", []byte{5, 6}, []byte{7, 8})
	if err != nil || !bytes.Equal(r.Data, []byte{10, 12, 14, 16}) {
		t.Errorf("InferCopy: %v %v", r.Data, err)
	}
	out := make([]byte, 4)
	r, err = c.Do(context.Background(), frontend.Request{Model: "double", Version: "1", Input: b, Output: out, Priority: 3})
	if err != nil || &r.Data[0] != &out[0] || out[3] != 8 {
		t.Errorf("own output: %v %v %v", r.Data, out, err)
	}
}

// TestSLOBinds: a model may say that no caller's deadline is later than its SLO allows; an earlier one holds.
func TestSLOBinds(t *testing.T) {
	for _, c := range []struct {
		binds       bool
		asked       time.Duration // 0: no deadline
		least, most time.Duration // of the budget that the scheduler sees
	}{
		{true, 0, 9 * time.Minute, 10 * time.Minute},
		{true, time.Hour, 9 * time.Minute, 10 * time.Minute},
		{true, 5 * time.Minute, 4 * time.Minute, 5 * time.Minute},
		{false, time.Hour, 59 * time.Minute, time.Hour},
	} {
		var budget atomic.Int64
		m := double
		m.SLOBinds = c.binds
		client, _ := open(t, func(s wire.Submit, in []byte) ([]byte, model.Reason) {
			budget.Store(s.Budget)
			return doubled(s, in)
		}, frontend.Options{}, m)

		ctx, cancel := context.Background(), context.CancelFunc(func() {})
		if c.asked > 0 {
			ctx, cancel = context.WithTimeout(ctx, c.asked)
		}
		r, err := client.Infer(ctx, "double", input(t, client, 1, 2, 3, 4))
		cancel()
		if got := time.Duration(budget.Load()); err != nil || got < c.least || got > c.most {
			t.Errorf("binds %v, asked for %v: budget %v, %v", c.binds, c.asked, got, err)
		}
		if most := c.most; r.Slack > most {
			t.Errorf("binds %v, asked for %v: slack %v", c.binds, c.asked, r.Slack)
		}
		r.Release()
	}
}

func TestInferManyCallers(t *testing.T) {
	c, _ := open(t, doubled, frontend.Options{})
	var wait sync.WaitGroup
	for i := range 2000 {
		wait.Go(func() {
			b, err := c.Buffer(4)
			if err != nil {
				t.Error(err)
				return
			}
			defer b.Free()
			for k := range 4 {
				binary.LittleEndian.PutUint32(b.Bytes(), uint32(i<<8|k)&0x7f7f7f7f)
				r, err := c.Infer(context.Background(), "double", b)
				if err != nil {
					t.Error(err)
					return
				}
				if got := binary.LittleEndian.Uint32(r.Data); got != 2*(uint32(i<<8|k)&0x7f7f7f7f) {
					t.Errorf("caller %d: another's answer %x", i, got)
				}
				r.Release()
			}
		})
	}
	wait.Wait()
	if s := c.Stats(); s.Live != 0 || s.Answers != 8000 || s.Strays != 0 {
		t.Errorf("%+v", s)
	}
}

func TestOutcomes(t *testing.T) {
	var reason atomic.Uint32
	c, s := open(t, func(wire.Submit, []byte) ([]byte, model.Reason) { return nil, model.Reason(reason.Load()) }, frontend.Options{})
	b := input(t, c, 0, 0, 0, 0)
	for _, want := range []struct {
		reason model.Reason
		kind   error
	}{
		{model.DeadlineCannotBeMet, frontend.ErrDropped}, {model.QueueFull, frontend.ErrRejected}, {model.DeadlinePast, frontend.ErrRejected},
		{model.UnknownModel, frontend.ErrRejected}, {model.NoBackend, frontend.ErrUnavailable}, {model.BackendLost, frontend.ErrUnavailable},
		{model.ExecutionFailed, frontend.ErrFailed}, {model.InputUnavailable, frontend.ErrFailed}, {model.Canceled, frontend.ErrCanceled},
	} {
		reason.Store(uint32(want.reason))
		_, err := c.Infer(context.Background(), "double", b)
		var o *frontend.OutcomeError
		if !errors.Is(err, want.kind) || !errors.As(err, &o) || o.Reason != want.reason || o.Local || o.Budget < time.Second || o.Elapsed <= 0 {
			t.Errorf("%v: %v", want.reason, err)
		}
		if got := errors.Is(err, context.DeadlineExceeded); got != (want.reason == model.DeadlineCannotBeMet || want.reason == model.DeadlinePast) {
			t.Errorf("%v: is a deadline: %v", want.reason, got)
		}
	}
	s.Hold()
	ended := make(chan error)
	go func() {
		_, err := c.Infer(context.Background(), "double", b)
		ended <- err
	}()
	wait(t, func() bool { return len(s.Waiting()) == 1 })
	s.Outcome(s.Waiting()[0].ID, 200) // a reason of the future
	if err := <-ended; !errors.Is(err, frontend.ErrFailed) {
		t.Error(err)
	}
}

func TestRefusedHere(t *testing.T) {
	c, s := open(t, doubled, frontend.Options{LiveMax: 1}, double, model.Info{ID: 3, Name: "unserved", Version: "1", Reason: model.Unloaded})
	b := input(t, c, 1, 2, 3, 4)
	other, _ := open(t, doubled, frontend.Options{})
	freed := input(t, c, 1, 2, 3, 4)
	freed.Free()
	past, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	gone, cancel2 := context.WithCancel(context.Background())
	cancel2()
	for name, call := range map[string]struct {
		ctx  context.Context
		r    frontend.Request
		kind error
	}{
		"no model":      {context.Background(), frontend.Request{Model: "nope", Input: b}, frontend.ErrRejected},
		"no version":    {context.Background(), frontend.Request{Model: "double", Version: "9", Input: b}, frontend.ErrRejected},
		"not loaded":    {context.Background(), frontend.Request{Model: "unserved", Input: b}, frontend.ErrUnavailable},
		"no input":      {context.Background(), frontend.Request{Model: "double"}, frontend.ErrInvalid},
		"freed input":   {context.Background(), frontend.Request{Model: "double", Input: freed}, frontend.ErrInvalid},
		"foreign input": {context.Background(), frontend.Request{Model: "double", Input: input(t, other, 1, 2, 3, 4)}, frontend.ErrInvalid},
		"short input":   {context.Background(), frontend.Request{Model: "double", Input: input(t, c, 1)}, frontend.ErrInvalid},
		"short output":  {context.Background(), frontend.Request{Model: "double", Input: b, Output: make([]byte, 3)}, frontend.ErrInvalid},
		"past deadline": {past, frontend.Request{Model: "double", Input: b}, context.DeadlineExceeded},
		"ended context": {gone, frontend.Request{Model: "double", Input: b}, frontend.ErrCanceled},
	} {
		if _, err := c.Do(call.ctx, call.r); !errors.Is(err, call.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := s.Submits(); n != 0 {
		t.Errorf("%d submitted", n)
	}
	s.Hold()
	ended := make(chan error)
	go func() {
		_, err := c.Infer(context.Background(), "double", b)
		ended <- err
	}()
	wait(t, func() bool { return len(s.Waiting()) == 1 })
	if _, err := c.Infer(context.Background(), "double", b); !errors.Is(err, frontend.ErrInvalid) {
		t.Errorf("a buffer that a request has: %v", err)
	}
	if _, err := c.InferCopy(context.Background(), "double", []byte{1, 2, 3, 4}); !errors.Is(err, frontend.ErrRejected) {
		t.Errorf("over LiveMax: %v", err)
	}
	s.Serve()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := c.Buffer(-1); !errors.Is(err, frontend.ErrInvalid) {
		t.Error(err)
	}
	if _, err := c.Buffer(rdma.BufferMax + 1); !errors.Is(err, rdma.ErrTooLarge) {
		t.Error(err)
	}
}

// wait polls for what another goroutine is about to do.
func wait(t testing.TB, done func() bool) {
	t.Helper()
	waitFor(t, 20*time.Second, done)
}

func TestCancel(t *testing.T) {
	c, s := open(t, doubled, frontend.Options{})
	b := input(t, c, 1, 2, 3, 4)
	s.Hold()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		_, err := c.Infer(ctx, "double", b)
		ended <- err
	}()
	wait(t, func() bool { return len(s.Waiting()) == 1 })
	cancel()
	err := <-ended
	if !errors.Is(err, frontend.ErrCanceled) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	id := s.Waiting()[0].ID
	if got := s.Canceled(); len(got) != 1 || got[0] != id {
		t.Errorf("canceled %v, want %v", got, id)
	}
	// I2, I4: the late answer touches nobody, and the input can be read no more.
	if err := s.Send(id, []byte{9, 9, 9, 9}); err != nil {
		t.Fatal(err)
	}
	wait(t, func() bool { return c.Stats().Strays == 1 })
	s.Serve()
	wait(t, func() bool { return c.Stats().Strays == 2 })
	if r, err := c.Infer(context.Background(), "double", b); err != nil || r.Data[0] != 2 {
		t.Errorf("after: %v %v", r.Data, err)
	}
}

// TestNobodyWaitsForever is I1: no answer, no outcome, no deadline of the context.
func TestNobodyWaitsForever(t *testing.T) {
	quick := double
	quick.SLO = int64(20 * time.Millisecond)
	c, s := open(t, doubled, frontend.Options{Grace: 10 * time.Millisecond}, quick)
	s.Hold()
	b := input(t, c, 1, 2, 3, 4)
	var o *frontend.OutcomeError
	if _, err := c.Infer(context.Background(), "double", b); !errors.Is(err, frontend.ErrDropped) || !errors.As(err, &o) || !o.Local {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond) // it is submitted before
	defer cancel()
	if _, err := c.Infer(ctx, "double", b); !errors.Is(err, frontend.ErrDropped) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	wait(t, func() bool { return len(s.Canceled()) == 2 })
}

func TestLateAnswer(t *testing.T) {
	quick := double
	quick.SLO = int64(time.Millisecond)
	c, _ := open(t, func(m wire.Submit, in []byte) ([]byte, model.Reason) {
		time.Sleep(5 * time.Millisecond)
		return doubled(m, in)
	}, frontend.Options{Grace: 5 * time.Second}, quick)
	r, err := c.InferCopy(context.Background(), "double", []byte{1, 2, 3, 4})
	if err != nil || r.Slack >= 0 || r.Data[1] != 4 {
		t.Errorf("%+v %v", r, err)
	}
}

// TestRequestMovesToTheVersionThatServes: a version is replaced while a request for the model queues. One that named no
// version is answered by the new version; one that named the old version ends with no_backend.
func TestRequestMovesToTheVersionThatServes(t *testing.T) {
	answer := func(m wire.Submit, in []byte) ([]byte, model.Reason) {
		if m.Model == double.ID {
			return nil, model.NoBackend
		}
		return doubled(m, in)
	}
	next := double
	next.ID, next.Version = 8, "2"
	unlike := next
	unlike.Inputs = []model.Tensor{{Name: "other", Datatype: "UINT8", Shape: []int64{4}}}
	for _, test := range []struct {
		version string
		newest  bool
		next    model.Info
		moves   bool
	}{{"", false, next, true}, {"1", false, next, false}, {"1", true, next, true}, {"", false, unlike, false}} {
		c, s := open(t, answer, frontend.Options{})
		s.Hold()
		ended := make(chan error)
		go func() {
			r, err := c.Do(context.Background(), frontend.Request{Model: "double", Version: test.version, Newest: test.newest, Input: input(t, c, 1, 2, 3, 4)})
			if err == nil && (r.Version != "2" || r.Data[0] != 2) {
				err = fmt.Errorf("answer %v of version %q", r.Data, r.Version)
			}
			ended <- err
		}()
		wait(t, func() bool { return len(s.Waiting()) == 1 })

		gone := double
		gone.Ready = false
		s.Return([]model.Info{test.next, gone})
		s.Serve()
		if err := <-ended; test.moves && err != nil || !test.moves && !errors.Is(err, frontend.ErrUnavailable) {
			t.Errorf("asked for version %q, next %+v: %v", test.version, test.next.Inputs, err)
		}
	}
}

func TestStrayAnswers(t *testing.T) {
	c, s := open(t, doubled, frontend.Options{})
	b := input(t, c, 1, 2, 3, 4)
	s.Hold()
	ended := make(chan error)
	go func() {
		r, err := c.Infer(context.Background(), "double", b)
		if err == nil && r.Data[0] != 2 {
			err = fmt.Errorf("answer %v", r.Data)
		}
		ended <- err
	}()
	wait(t, func() bool { return len(s.Waiting()) == 1 })
	id := s.Waiting()[0].ID
	for _, stray := range []uint64{0, 1, ^uint64(0), id + 1, id ^ 1<<24, id + 1<<28} {
		if err := s.Send(stray, []byte{0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		s.Outcome(stray, model.QueueFull)
	}
	s.Serve()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := s.Send(id, []byte{0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	wait(t, func() bool { return c.Stats().Strays == 13 })
}

func TestWrongOutputSize(t *testing.T) {
	c, _ := open(t, func(wire.Submit, []byte) ([]byte, model.Reason) { return []byte{1}, 0 }, frontend.Options{})
	if _, err := c.InferCopy(context.Background(), "double", []byte{1, 2, 3, 4}); !errors.Is(err, frontend.ErrFailed) {
		t.Error(err)
	}
}

func TestReconnect(t *testing.T) {
	c, s := open(t, doubled, frontend.Options{Reconnect: time.Minute})
	s.Hold()
	type end struct {
		submitted bool // before the session was lost
		r         frontend.Result
		err       error
	}
	ended := make(chan end, 20)
	begin := func(submitted bool) {
		go func() {
			r, err := c.InferCopy(context.Background(), "double", []byte{1, 2, 3, 4})
			ended <- end{submitted, r, err}
		}()
	}
	for range 10 {
		begin(true)
	}
	wait(t, func() bool { return len(s.Waiting()) == 10 })
	s.Lose()
	for range 10 { // these wait for the session
		begin(false)
	}
	wait(t, func() bool { return c.Stats().Live == 20 })
	s.Return(nil) // the scheduler is back before its backends
	if n := s.Submits(); n != 10 {
		t.Errorf("%d submitted before the model is back", n)
	}
	moved := double
	moved.ID = 3 // the new scheduler numbers models otherwise
	s.Return([]model.Info{moved})
	wait(t, func() bool { return len(s.Waiting()) == 20 })
	for _, m := range s.Waiting() {
		if m.Model != 3 || m.Budget >= double.SLO || m.Budget <= 0 {
			t.Errorf("resubmitted as %+v", m)
		}
	}
	s.Serve()
	for range 20 {
		// One that is live before it waits for the session may find it back.
		if e := <-ended; e.err != nil || e.r.Resubmits > 1 || e.submitted && e.r.Resubmits == 0 || e.r.Data[3] != 8 {
			t.Errorf("%+v", e)
		}
	}
}

// TestNewsOfOneModelKeepsTheOthers: a backend that goes takes only its own models along.
func TestNewsOfOneModelKeepsTheOthers(t *testing.T) {
	c, s := open(t, doubled, frontend.Options{Reconnect: time.Millisecond})
	other := double
	other.Name, other.ID = "other", 7
	s.Return([]model.Info{other})
	other.Ready = false
	s.Return([]model.Info{other})
	time.Sleep(5 * time.Millisecond) // more than Reconnect
	if r, err := c.InferCopy(context.Background(), "double", []byte{1, 2, 3, 4}); err != nil || r.Data[3] != 8 {
		t.Errorf("%v, %v", r, err)
	}
	if c.Ready() {
		t.Error("ready, while a model that was just there has no backend")
	}
}

func TestSchedulerStaysAway(t *testing.T) {
	c, s := open(t, doubled, frontend.Options{Reconnect: 50 * time.Millisecond})
	s.Hold()
	ended := make(chan error)
	infer := func() error {
		_, err := c.InferCopy(context.Background(), "double", []byte{1, 2, 3, 4})
		return err
	}
	go func() { ended <- infer() }()
	wait(t, func() bool { return len(s.Waiting()) == 1 })
	s.Lose()
	if err := <-ended; !errors.Is(err, frontend.ErrUnavailable) {
		t.Errorf("submitted before: %v", err)
	}
	if err := infer(); !errors.Is(err, frontend.ErrUnavailable) {
		t.Errorf("asked after: %v", err)
	}
	s.Return(nil)
	go func() { ended <- infer() }()
	if err := <-ended; !errors.Is(err, frontend.ErrUnavailable) && !errors.Is(err, frontend.ErrRejected) {
		t.Errorf("model stays away: %v", err)
	}
}

func TestPrepare(t *testing.T) {
	c, s := open(t, doubled, frontend.Options{})
	b := input(t, c, 0, 0, 0, 0)
	s.Hold()
	fill := func(wait func()) func([]byte) error {
		return func(in []byte) error {
			wait()
			copy(in, []byte{1, 2, 3, 4})
			return nil
		}
	}
	// The request queues while the hook works; the backend asks after it, on a busy host in a later attempt.
	for after := 20 * time.Millisecond; ; after *= 4 {
		s.Hold()
		r, err := c.Do(context.Background(), frontend.Request{Model: "double", Input: b, Prepare: fill(func() {
			if len(s.Waiting()) != 1 {
				t.Error("not submitted before the hook")
			}
			time.AfterFunc(after, s.Serve)
		})})
		if err != nil || r.Data[0] != 2 || r.Resubmits > 1 || r.Resubmits == 1 && after > time.Second {
			t.Errorf("in time, after %v: %+v %v", after, r, err)
		}
		if err != nil || r.Resubmits == 0 || after > time.Second {
			break
		}
	}
	// The backend asks while the hook works: refused, and submitted again.
	refused := s.Refused()
	r, err := c.Do(context.Background(), frontend.Request{Model: "double", Input: b, Prepare: fill(func() {
		wait(t, func() bool { return s.Refused() > refused })
	})})
	if err != nil || r.Data[0] != 2 || r.Resubmits != 1 {
		t.Errorf("late: %+v %v", r, err)
	}
	broken := errors.New("broken image")
	s.Hold()
	if _, err = c.Do(context.Background(), frontend.Request{Model: "double", Input: b, Prepare: func([]byte) error { return broken }}); !errors.Is(err, broken) || !errors.Is(err, frontend.ErrFailed) {
		t.Errorf("failing: %v", err)
	}
	if len(s.Canceled()) != 1 {
		t.Errorf("canceled %v", s.Canceled())
	}
}

// TestMargin: the scheduler is told a deadline earlier by the margin, at most a tenth of the budget.
func TestMargin(t *testing.T) {
	const margin = 5 * time.Second
	c, s := open(t, doubled, frontend.Options{Margin: margin})
	s.Hold()
	for i, budget := range []time.Duration{200 * time.Second, 20 * time.Second} {
		ctx, cancel := context.WithTimeout(context.Background(), budget)
		ended := make(chan error)
		go func() {
			_, err := c.InferCopy(ctx, "double", []byte{1, 2, 3, 4})
			ended <- err
		}()
		wait(t, func() bool { return len(s.Waiting()) == i+1 })
		if got := time.Duration(s.Waiting()[i].Budget); got > budget-min(margin, budget/10) || got < budget/2 {
			t.Errorf("of %v the scheduler is told %v", budget, got)
		}
		cancel()
		<-ended
	}
}

func TestDoAll(t *testing.T) {
	c, _ := open(t, doubled, frontend.Options{})
	const n = 40
	calls := make([]frontend.Call, n)
	for i := range calls {
		calls[i].Request = frontend.Request{Model: "double", Input: input(t, c, byte(i), 0, 0, 0)}
	}
	calls[7].Model, calls[9].Input = "nope", calls[8].Input
	c.DoAll(context.Background(), calls)
	if !errors.Is(calls[9].Err, frontend.ErrInvalid) {
		t.Errorf("one buffer for two requests: %v", calls[9].Err)
	}
	for i := range calls {
		if bad := i == 7 || i == 9; (calls[i].Err != nil) != bad || !bad && calls[i].Result.Data[0] != byte(2*i) {
			t.Errorf("%d: %v %v", i, calls[i].Result.Data, calls[i].Err)
		}
	}
}

// TestDoWhole: of calls that are worth nothing without each other none is begun after one has failed, and each has an error.
func TestDoWhole(t *testing.T) {
	c, _ := open(t, doubled, frontend.Options{})
	calls := make([]frontend.Call, 3)
	for i := range calls {
		calls[i].Request = frontend.Request{Model: "double", Input: input(t, c, byte(i), 1, 2, 3)}
	}
	calls[1].Input = nil
	if err := c.DoWhole(context.Background(), calls); !errors.Is(err, frontend.ErrInvalid) {
		t.Error(err)
	}
	if calls[1].Err == nil || calls[2].Err == nil {
		t.Errorf("%v, %v: want an error for the call that failed and for the one that was not begun", calls[1].Err, calls[2].Err)
	}
	if n := c.Stats().Requests; n != 1 {
		t.Errorf("%d requests were begun, want 1", n)
	}
}

func TestCloseEndsRequests(t *testing.T) {
	s, err := echo.New([]model.Info{double}, doubled)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := frontend.Dial(context.Background(), frontend.Options{Scheduler: s.Addr})
	if err != nil {
		t.Fatal(err)
	}
	s.Hold()
	ended := make(chan error)
	go func() {
		_, err := c.InferCopy(context.Background(), "double", []byte{1, 2, 3, 4})
		ended <- err
	}()
	wait(t, func() bool { return len(s.Waiting()) == 1 })
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, frontend.ErrClosed) {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.InferCopy(context.Background(), "double", []byte{1, 2, 3, 4}); !errors.Is(err, frontend.ErrClosed) {
		t.Errorf("a closed client is asked: %v, want %v", err, frontend.ErrClosed)
	}
}

func TestNewestVersion(t *testing.T) {
	v := func(version string, ready bool) model.Info {
		m := double
		m.Version, m.Ready = version, ready
		return m
	}
	c, _ := open(t, doubled, frontend.Options{}, v("2", true), v("10", true), v("11", false), v("1", true))
	if m := c.Model("double", ""); m == nil || m.Version != "10" {
		t.Errorf("%+v", m)
	}
	if got := len(c.Models()); got != 4 {
		t.Errorf("%d models", got)
	}
}
