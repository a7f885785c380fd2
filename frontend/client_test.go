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
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// double has a deadline that exceeds any pause of a host.
var double = model.Info{ID: 7, Name: "double", Version: "1", SLO: int64(10 * time.Minute), BatchMax: 8, Ready: true, Platform: "test",
	Inputs: []model.Tensor{{Name: "x", Datatype: "UINT8", Shape: []int64{4}}}, Outputs: []model.Tensor{{Name: "y", Datatype: "UINT8", Shape: []int64{4}}}}

// doubled returns the input with every byte doubled.
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

// TestSLOBinds shows that a model may require that no caller's deadline is later than its SLO allows, while an
// earlier deadline still holds.
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

// TestRequestMovesToTheVersionThatServes: a version is replaced while a request for the model is queued. A request
// that named no version is answered by the new version; one that named the old version ends with no_backend.
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
	// The request is queued while the hook works. The backend requests its input, on a busy host in a later attempt.
	for after := 20 * time.Millisecond; ; after *= 4 {
		s.Hold()
		r, err := c.Do(context.Background(), frontend.Request{Model: "double", Input: b, PrepareTime: time.Nanosecond, Prepare: fill(func() {
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
	// The backend requests the input while the hook works: refused, and submitted again.
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

// TestMargin shows that the scheduler is told a deadline that is earlier by the margin, at most a tenth of the
// budget.
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

// TestDoAllPrepares: the hooks of all calls run before the first answer, because one batch waits for all their inputs.
func TestDoAllPrepares(t *testing.T) {
	for name, do := range map[string]func(*frontend.Client, []frontend.Call){
		"DoAll": func(c *frontend.Client, calls []frontend.Call) { c.DoAll(context.Background(), calls) },
		"DoWhole": func(c *frontend.Client, calls []frontend.Call) {
			if err := c.DoWhole(context.Background(), calls); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := open(t, doubled, frontend.Options{})
			s.Hold()
			var prepared atomic.Int32
			calls := make([]frontend.Call, 3)
			for i := range calls {
				calls[i].Request = frontend.Request{Model: "double", Input: input(t, c, 0, 0, 0, 0), Prepare: func(in []byte) error {
					in[0] = byte(i)
					prepared.Add(1)
					return nil
				}}
			}

			ended := make(chan struct{})
			go func() { do(c, calls); close(ended) }()
			wait(t, func() bool { return int(prepared.Load()) == len(calls) })
			s.Serve()
			<-ended
			for i := range calls {
				if calls[i].Err != nil || calls[i].Result.Data[0] != byte(2*i) {
					t.Errorf("%d: %v %v", i, calls[i].Result.Data, calls[i].Err)
				}
			}
		})
	}
}

// TestDoWhole: of calls that are useless without each other, none begins after one has failed, and each gets an
// error.
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
