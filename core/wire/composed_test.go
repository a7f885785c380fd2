package wire

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"downbeat.dev/core/model"
)

// TestComposed shows that a table is read as it was written, and that an invalid table, or one of another model, is
// refused.
func TestComposed(t *testing.T) {
	want := Composed{Hold: 5, Lease: 1600, Parts: []model.Descriptor{{Key: 0, Offset: 44, Length: 9}, model.Descriptor{Key: 7, Offset: 1, Length: 2}.In(model.NodesMax)}}
	b := want.Append(nil)
	if len(b) != ComposedBytes(2) {
		t.Fatalf("%d bytes, want %d", len(b), ComposedBytes(2))
	}
	var got Composed
	if err := got.DecodeComposed(b, 2); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v: want %+v", got, err, want)
	}

	for name, bad := range map[string][]byte{"cut": b[:len(b)-1], "longer": append(bytes.Clone(b), 0), "none": make([]byte, len(b))} {
		if err := got.DecodeComposed(bad, 2); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v, want ErrMalformed", name, err)
		}
	}
	if err := got.DecodeComposed(b, 3); !errors.Is(err, ErrMalformed) {
		t.Errorf("two parts for three inputs: %v, want ErrMalformed", err)
	}
	// A lease beyond the limit becomes the longest lease.
	long := Composed{Lease: 1 << 31}
	if err := got.DecodeComposed(long.Append(nil), 0); err != nil || got.Lease != 16*(1<<16-1) {
		t.Errorf("lease %d, %v", got.Lease, err)
	}
}

// TestRelease is the same for releases.
func TestRelease(t *testing.T) {
	want := Release{Key: 1 << 60, Offset: 77}
	if got, err := DecodeRelease(want.Append(nil)); err != nil || got != want {
		t.Errorf("%+v, %v: want %+v", got, err, want)
	}
	for _, bad := range [][]byte{nil, want.Append(nil)[:15], make([]byte, 16)} {
		if _, err := DecodeRelease(bad); !errors.Is(err, ErrMalformed) {
			t.Errorf("% x: %v, want ErrMalformed", bad, err)
		}
	}
}

// TestHeldResult shows that places come first, then the outputs that are not held.
func TestHeldResult(t *testing.T) {
	places := []model.Descriptor{model.Descriptor{Key: 9, Length: 4}.In(3), {Length: 2}}
	body := append(AppendDescriptors(nil, places), 1, 2)
	got, rest, err := DecodeHeld(body, 2)
	if err != nil || !reflect.DeepEqual(got, places) || !bytes.Equal(rest, []byte{1, 2}) {
		t.Errorf("%+v, % x, %v", got, rest, err)
	}
	for outputs, b := range map[int][]byte{2: body[:31], PartsMax + 1: make([]byte, 16*(PartsMax+1))} {
		if _, _, err := DecodeHeld(b, outputs); !errors.Is(err, ErrMalformed) {
			t.Errorf("%d outputs in %d bytes: %v, want ErrMalformed", outputs, len(b), err)
		}
	}
	h := ResultHeader{ID: 5, Output: uint32(len(body)), Held: true, Staged: true}
	if read, _, err := DecodeResult(append(h.Append(nil), body...)); err != nil || read != h {
		t.Errorf("%+v, %v: want %+v", read, err, h)
	}
}
