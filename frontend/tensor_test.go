package frontend_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/internal/echo"
)

// mirror is a model that returns its inputs, with a tensor of every kind.
var mirror = model.Info{ID: 3, Name: "mirror", Version: "1", SLO: int64(10 * time.Minute), BatchMax: 8, Ready: true, Platform: "test", InputMax: 1 << 16,
	Inputs: mirrored, Outputs: mirrored}

var mirrored = []model.Tensor{
	{Name: "flag", Datatype: model.Bool, Shape: []int64{1}}, // the following tensors are not aligned
	{Name: "scores", Datatype: model.FP32, Shape: []int64{2, 2}},
	{Name: "words", Datatype: model.Bytes, Shape: []int64{2}},
	{Name: "small", Datatype: model.Int16, Shape: []int64{3}},
	{Name: "more", Datatype: model.Bytes},
	{Name: "large", Datatype: model.Uint64, Shape: []int64{2}},
}

func same(_ wire.Submit, in []byte) ([]byte, model.Reason) { return slices.Clone(in), model.ReasonNone }

// TestTypedTensors shows that the model gets the values that were set, in any order of setting, and that its answer
// is read with its types.
func TestTypedTensors(t *testing.T) {
	c, _ := open(t, same, frontend.Options{}, mirror)
	in, err := c.NewInput("mirror")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Free()

	long := strings.Repeat("lang ", 2000) // larger than the buffer was made for
	for round := range 2 {
		words := []string{"Takt", "größer"}
		if round == 1 {
			words = []string{long, ""}
		}
		err = errors.Join(in.Tensor("large").SetInt64s([]int64{0, math.MaxInt64}), in.Tensor("words").SetStrings(words),
			in.Tensor("small").SetInt64s([]int64{-32768, -1, 32767}), in.Tensor("more").SetBytes(model.AppendText(nil, "one")),
			in.Tensor("flag").SetInt64s([]int64{1}), in.Tensor("scores").SetFloat32s([]float32{0.5, -1, float32(math.Inf(1)), 3}))
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Infer(context.Background(), "mirror", in)
		if err != nil {
			t.Fatal(err)
		}

		flag, err1 := r.Output("flag").Int64s()
		scores, err2 := r.Output("scores").Float32s()
		got, err3 := r.Output("words").Strings()
		small, err4 := r.Output("small").Int64s()
		more, err5 := r.Output("more").Strings()
		large, err6 := r.Output("large").Int64s()
		if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
			t.Fatal(err)
		}
		if flag[0] != 1 || !slices.Equal(scores, []float32{0.5, -1, float32(math.Inf(1)), 3}) || !slices.Equal(got, words) ||
			!slices.Equal(small, []int64{-32768, -1, 32767}) || more[0] != "one" || !slices.Equal(large, []int64{0, math.MaxInt64}) {
			t.Errorf("%v %v %.40q %v %q %v", flag, scores, got, small, more, large)
		}
		if info := r.Output("scores").Info(); info.Datatype != model.FP32 || !slices.Equal(info.Shape, []int64{2, 2}) {
			t.Errorf("%+v", info)
		}
		r.Release()
	}
}

// TestTensorErrorsSayWhatIsAllowed shows that errors give the tensor, the given value, and the allowed values.
func TestTensorErrorsSayWhatIsAllowed(t *testing.T) {
	c, _ := open(t, same, frontend.Options{}, mirror)
	in, err := c.NewInput("mirror")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Free()
	r, err := c.Infer(context.Background(), "mirror", in) // texts of length zero are valid
	if err != nil {
		t.Fatal(err)
	}
	raw, err := c.Buffer(4)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Free()

	_, floats := in.Tensor("words").Float32s()
	_, texts := in.Tensor("flag").Strings()
	var none frontend.Result
	for want, err := range map[string]error{
		`input "wrods": no such tensor; the model has "flag", "scores", "words"`:  in.Tensor("wrods").SetStrings(nil),
		`tensor "small": element 1: 32768: INT16 is within -32768 and 32767 here`: in.Tensor("small").SetInt64s([]int64{0, 32768, 0}),
		`tensor "large": element 0: -1: UINT64 is within 0`:                       in.Tensor("large").SetInt64s([]int64{-1, 0}),
		`tensor "flag": element 0: 2: BOOL is within 0 and 1`:                     in.Tensor("flag").SetInt64s([]int64{2}),
		`tensor "scores": 3 elements: shape [2 2] takes 4`:                        in.Tensor("scores").SetFloat32s(make([]float32, 3)),
		`tensor "scores": []int64 for FP32: want one of [BOOL UINT8`:              in.Tensor("scores").SetInt64s(make([]int64, 4)),
		`tensor "words": []float32 for BYTES: want one of [FP32]`:                 floats,
		`tensor "flag": []string for BOOL: want one of [BYTES]`:                   texts,
		`tensor "scores": 15 bytes: shape [2 2] of FP32 takes 16`:                 in.Tensor("scores").SetBytes(make([]byte, 15)),
		`tensor "words": 1 whole elements in 9 bytes: shape [2] takes 2`:          in.Tensor("words").SetBytes(append(model.AppendText(nil, "a"), 9, 0, 0, 0)),
		`tensor "flag": an output cannot be set`:                                  r.Output("flag").SetInt64s([]int64{1}),
		`output "flag": the request got no output`:                                none.Output("flag").Err(),
		`the buffer was not made by NewInput`:                                     raw.Tensor("flag").Err(),
	} {
		if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, frontend.ErrInvalid) {
			t.Errorf("got %v, want %q", err, want)
		}
	}

	var outcome *frontend.OutcomeError
	if _, err := c.NewInput("mirorr"); !errors.As(err, &outcome) || outcome.Reason != model.UnknownModel {
		t.Errorf("an unknown model: %v", err)
	}
}

// TestWideIntegers shows that a UINT64 beyond int64 is reported as such and not wrapped.
func TestWideIntegers(t *testing.T) {
	c, _ := open(t, same, frontend.Options{}, mirror)
	in, err := c.NewInput("mirror")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Free()
	if err := in.Tensor("large").SetBytes(slices.Repeat([]byte{255}, 16)); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Tensor("large").Int64s(); err == nil || !strings.Contains(err.Error(), "18446744073709551615") {
		t.Errorf("got %v", err)
	}
}

// TestWatchModels shows that it reports at once, after each announcement and after the loss of the scheduler, and
// ends with its context.
func TestWatchModels(t *testing.T) {
	c, s := open(t, doubled, frontend.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if m, err := c.AwaitModel(ctx, "double"); err != nil || m.Name != "double" {
		t.Errorf("%v, %v", m, err)
	}

	step := 0
	for models := range c.WatchModels(ctx) {
		ready := len(models) > 0 && models[0].Ready
		switch {
		case step == 0 && ready:
			idle := double
			idle.Ready = false
			s.Return([]model.Info{idle})
			step = 1
		case step == 1 && !ready:
			s.Lose()
			step = 2
		case step == 2 && !c.Connected():
			s.Return([]model.Info{double})
			step = 3
		case step == 3 && ready:
			step = 4
		}
		if step == 4 {
			break
		}
	}
	if step != 4 {
		t.Fatalf("ended at step %d: %v", step, ctx.Err())
	}

	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.AwaitModel(short, "triple"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `announced are ["double"]`) {
		t.Errorf("a model that nobody serves: %v", err)
	}
	for range c.WatchModels(short) {
		t.Error("yielded after its context's end")
	}
}

// TestLentInputsAreRefusedWhereTheyAreLookedAt: if this client must inspect an input, another process could change it
// at the same time. A model with one shape and without sequences accepts lent bytes like its client's own.
func TestLentInputsAreRefusedWhereTheyAreLookedAt(t *testing.T) {
	one := func(name string, id uint32, in model.Tensor) model.Info {
		return model.Info{ID: id, Name: name, Version: "1", SLO: int64(time.Minute), BatchMax: 8, Ready: true, Platform: "test",
			Inputs: []model.Tensor{in}, Outputs: []model.Tensor{{Name: "y", Datatype: model.Uint8, Shape: []int64{4}}}}
	}
	s, err := echo.New([]model.Info{one("fixed", 1, model.Tensor{Name: "x", Datatype: model.Uint8, Shape: []int64{4}}),
		one("texts", 2, model.Tensor{Name: "x", Datatype: model.Bytes, Shape: []int64{1}}),
		one("open", 3, model.Tensor{Name: "x", Datatype: model.Uint8, Shape: []int64{model.OpenDim}}), counter("1", time.Minute)},
		func(_ wire.Submit, in []byte) ([]byte, model.Reason) { return in, model.ReasonNone })
	if err != nil {
		t.Fatal(err)
	}
	c, err := frontend.Dial(context.Background(), frontend.Options{Scheduler: s.Addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(); _ = s.Close() })

	for name, refused := range map[string]bool{"fixed": false, "texts": true, "open": true, "counter": true} {
		b, ok := c.Lend([]byte{0, 0, 0, 0})
		if !ok {
			t.Fatal("a client whose backends are all in its process lends nothing")
		}
		r := frontend.Request{Model: name, Input: b}
		if name == "counter" {
			r.Sequence = frontend.Sequence{ID: 7, Start: true}
		}
		result, err := c.Do(context.Background(), r)
		if said := errors.Is(err, frontend.ErrInvalid) && strings.Contains(err.Error(), "(Lend)"); said != refused || !refused && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		result.Release()
		b.Free()
	}
	if n := len(s.Waiting()) + s.Submits(); n != 1 {
		t.Errorf("%d requests reached the scheduler, want the one of fixed", n)
	}
}
