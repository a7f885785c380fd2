//go:build linux

package frontend_test

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/frontendtest"
)

// largeBytes is the size of an output that is worth holding.
const largeBytes = 256 << 10

func bytesTensor(name string, n int64) []frontend.TensorInfo {
	return []frontend.TensorInfo{{Name: name, Datatype: model.Uint8, Shape: []int64{n}}}
}

// spread makes a large output and a small one of a byte; sum adds up the large one.
var (
	spread = frontendtest.Model{Name: "spread", Inputs: bytesTensor("x", 1), BatchMax: 4,
		Outputs: append(bytesTensor("large", largeBytes), bytesTensor("small", 1)...),
		Answer: func(r frontendtest.Row) error {
			x := r.Input("x").Bytes()[0]
			large := r.Output("large").Bytes()
			for i := range large {
				large[i] = x + byte(i)
			}
			r.Output("small").Bytes()[0] = x
			return nil
		}}
	sum = frontendtest.Model{Name: "sum", Inputs: append(bytesTensor("a", 1), bytesTensor("large", largeBytes)...), Outputs: bytesTensor("total", 8), BatchMax: 4,
		Answer: func(r frontendtest.Row) error {
			total := uint64(r.Input("a").Bytes()[0])
			for _, b := range r.Input("large").Bytes() {
				total += uint64(b)
			}
			binary.LittleEndian.PutUint64(r.Output("total").Bytes(), total)
			return nil
		}}
)

// wantSum returns sum's answer to 7 and to spread's output for x.
func wantSum(x byte) (total uint64) {
	total = 7
	for i := range largeBytes {
		total += uint64(x + byte(i))
	}
	return total
}

// TestOutputsStayWithTheirBackend shows that a held output can be another backend's input, can be fetched, and is
// gone after it is released or its backend has left.
func TestOutputsStayWithTheirBackend(t *testing.T) {
	server := frontendtest.Start(t, sum)
	leave := server.Join(t, "maker", spread)
	c := server.Client(t)
	for _, m := range []string{"spread", "sum"} {
		if _, err := c.AwaitModel(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	for x := range byte(20) {
		made, held := makeLarge(ctx, t, c, x)
		if err := checkSum(ctx, c, held, wantSum(x)); err != nil {
			t.Fatalf("frame %d: %v", x, err)
		}

		b, err := held.Fetch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if b.Bytes()[3] != x+3 || len(b.Bytes()) != largeBytes {
			t.Errorf("fetched %d bytes, the fourth is %d: want %d and %d", len(b.Bytes()), b.Bytes()[3], largeBytes, x+3)
		}
		b.Free()
		made.Release()
	}

	// A released output may be readable a little longer; then it is refused.
	made, held := makeLarge(ctx, t, c, 1)
	made.Release()
	for checkSum(ctx, c, held, wantSum(1)) == nil {
		if ctx.Err() != nil {
			t.Fatal("a released output can still be read after a minute")
		}
	}
	if err := checkSum(ctx, c, held, 0); !isInputUnavailable(err) {
		t.Errorf("released: %v, want input_unavailable", err)
	}

	made, held = makeLarge(ctx, t, c, 2)
	defer made.Release()
	leave()
	if err := checkSum(ctx, c, held, 0); !isInputUnavailable(err) {
		t.Errorf("its backend has left: %v, want input_unavailable", err)
	}
	if _, err := held.Fetch(ctx); !errors.Is(err, frontend.ErrUnavailable) {
		t.Errorf("fetched from a backend that has left: %v, want ErrUnavailable", err)
	}
}

// makeLarge calls spread until its backend holds the large output, because at first the backend may have no slot to
// spare.
func makeLarge(ctx context.Context, t *testing.T, c *frontend.Client, x byte) (frontend.Result, *frontend.Held) {
	t.Helper()
	for {
		r, err := c.Do(ctx, frontend.Request{Model: "spread", Parts: []frontend.Part{{Data: []byte{x}}}, Hold: 1})
		if err != nil {
			t.Fatal(err)
		}
		if r.Held == nil {
			if len(r.Data) != largeBytes+1 {
				t.Fatalf("sent: %d bytes, want %d", len(r.Data), largeBytes+1)
			}
			r.Release()
			continue
		}
		if !slices.Equal(r.Data, []byte{x}) || r.Held[0].Bytes() != largeBytes || r.Held[1] != nil {
			t.Fatalf("data % x, held %v: want %d and the first output", r.Data, r.Held, x)
		}
		return r, r.Held[0]
	}
}

func checkSum(ctx context.Context, c *frontend.Client, held *frontend.Held, want uint64) error {
	r, err := c.Do(ctx, frontend.Request{Model: "sum", Parts: []frontend.Part{{Data: []byte{7}}, {Held: held}}})
	if err != nil {
		return err
	}
	defer r.Release()
	if got := binary.LittleEndian.Uint64(r.Data); got != want {
		return errors.New("another sum than what was held")
	}
	return nil
}

func isInputUnavailable(err error) bool {
	var of *frontend.OutcomeError
	return errors.As(err, &of) && of.Reason == model.InputUnavailable
}

// TestPartsAreChecked shows that an error names the invalid field.
func TestPartsAreChecked(t *testing.T) {
	c := frontendtest.Start(t, sum).Client(t)
	if _, err := c.AwaitModel(t.Context(), "sum"); err != nil {
		t.Fatal(err)
	}
	for name, parts := range map[string][]frontend.Part{
		"too few":      {{Data: []byte{1}}},
		"a wrong size": {{Data: []byte{1}}, {Data: make([]byte, largeBytes-1)}},
	} {
		if _, err := c.Do(t.Context(), frontend.Request{Model: "sum", Parts: parts}); !errors.Is(err, frontend.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	in, err := c.Buffer(1)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Free()
	if _, err := c.Do(t.Context(), frontend.Request{Model: "sum", Input: in, Parts: []frontend.Part{{Data: []byte{1}}, {Data: make([]byte, largeBytes)}}}); !errors.Is(err, frontend.ErrInvalid) {
		t.Errorf("Parts beside Input: %v, want ErrInvalid", err)
	}
}
