//go:build linux

package frontendtest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"downbeat.dev/frontend"
	"downbeat.dev/frontend/frontendtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var pair = []frontend.TensorInfo{{Name: "x", Datatype: "FP32", Shape: []int64{2}}}

// double doubles its input and refuses a negative one.
var double = frontendtest.Model{Name: "double", Inputs: pair, Outputs: []frontend.TensorInfo{{Name: "y", Datatype: "FP32", Shape: []int64{2}}},
	Answer: func(r frontendtest.Row) error {
		x, err := r.Input("x").Float32s()
		if err != nil {
			return err
		}
		if x[0] < 0 {
			return errors.New("negative")
		}
		return r.Output("y").SetFloat32s([]float32{2 * x[0], 2 * x[1]})
	}}

func ask(ctx context.Context, c *frontend.Client, model string, x ...float32) ([]float32, error) {
	in, err := c.NewInput(model)
	if err != nil {
		return nil, err
	}
	defer in.Free()
	if err := in.Tensor("x").SetFloat32s(x); err != nil {
		return nil, err
	}
	r, err := c.Infer(ctx, model, in)
	if err != nil {
		return nil, err
	}
	return r.Output("y").Float32s()
}

// TestServerAnswersByFunction shows that functions answer requests, and that a function's error fails its request.
func TestServerAnswersByFunction(t *testing.T) {
	c := frontendtest.Start(t, double).Client(t)
	if _, err := c.AwaitModel(t.Context(), "double"); err != nil {
		t.Fatal(err)
	}
	if y, err := ask(t.Context(), c, "double", 1, 2.5); err != nil || y[0] != 2 || y[1] != 5 {
		t.Errorf("%v, %v", y, err)
	}

	in, err := c.NewInput("double")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Free()
	r, err := c.Infer(t.Context(), "double", in)
	if s := r.Stages; err != nil || s.Execute != r.Exec || s.Execute <= 0 || s.Queue+s.Fetch+s.Wait+s.Execute+s.Reply != r.Elapsed {
		t.Errorf("stages %+v of %v, %v", s, r.Elapsed, err)
	}

	if _, err := ask(t.Context(), c, "double", -1, 0); !errors.Is(err, frontend.ErrFailed) {
		t.Errorf("a function that fails: %v", err)
	}
}

// TestServerKeepsDeadlines shows that the real scheduler drops requests that cannot be answered in time.
func TestServerKeepsDeadlines(t *testing.T) {
	slow := double
	slow.Name, slow.Takes = "slow", 20*time.Second
	c := frontendtest.Start(t, slow).Client(t)
	if _, err := c.AwaitModel(t.Context(), "slow"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // half of the model's time
	defer cancel()
	if _, err := ask(ctx, c, "slow", 1, 2); !errors.Is(err, frontend.ErrDropped) && !errors.Is(err, frontend.ErrRejected) {
		t.Errorf("a deadline that cannot be met: %v", err)
	}
}

// failed is a testing.TB that records how a test failed.
type failed struct {
	testing.TB
	said string
}

func (f *failed) Fatalf(format string, args ...any) { f.said = errors.New(format).Error(); panic(f) }

// TestModelsAreChecked shows that models are checked like those of a repository.
func TestModelsAreChecked(t *testing.T) {
	for name, m := range map[string]frontendtest.Model{
		"no name": {},
		"BYTES":   {Name: "words", Inputs: []frontend.TensorInfo{{Name: "w", Datatype: "BYTES", Shape: []int64{1}}}, Outputs: pair},
		"a shape": {Name: "none", Inputs: []frontend.TensorInfo{{Name: "x", Datatype: "FP32", Shape: []int64{0}}}, Outputs: pair},
	} {
		f := &failed{TB: t}
		func() {
			defer func() { _ = recover() }()
			frontendtest.Start(f, m)
		}()
		if !strings.HasPrefix(f.said, "frontendtest: ") {
			t.Errorf("%s: the test did not fail: %q", name, f.said)
		}
	}
}

// TestRowsOfACallRunInOneBatch shows that rows that are useless without each other are submitted together, so that an
// idle GPU does not begin with the first one alone. Each row reports the time of its batch.
func TestRowsOfACallRunInOneBatch(t *testing.T) {
	c := frontendtest.Start(t, double).Client(t)
	if _, err := c.AwaitModel(t.Context(), "double"); err != nil {
		t.Fatal(err)
	}

	const rows = 8
	for range 20 {
		calls := make([]frontend.Call, rows)
		for i := range calls {
			in, err := c.NewInput("double")
			if err != nil {
				t.Fatal(err)
			}
			defer in.Free()
			calls[i].Request = frontend.Request{Model: "double", Input: in}
		}
		if err := c.DoWhole(t.Context(), calls); err != nil {
			t.Fatal(err)
		}
		for i := range calls {
			if calls[i].Result.Exec != calls[0].Result.Exec {
				t.Errorf("row %d ran in a batch of %v, row 0 in one of %v", i, calls[i].Result.Exec, calls[0].Result.Exec)
			}
			calls[i].Result.Release()
		}
	}
}
