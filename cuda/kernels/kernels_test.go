package kernels

import (
	"bytes"
	"math"
	"testing"

	"downbeat.dev/cuda"
)

func TestHalfRoundTrips(t *testing.T) {
	for h := range 1 << 16 {
		f := FromHalf(uint16(h))
		if math.IsNaN(float64(f)) {
			if !math.IsNaN(float64(FromHalf(ToHalf(f)))) {
				t.Fatalf("%#x: NaN is lost", h)
			}
			continue
		}
		if got := ToHalf(f); got != uint16(h) {
			t.Fatalf("%#x is %v, back %#x", h, f, got)
		}
	}
	for f, want := range map[float32]uint16{65519: 0x7bff, 65520: 0x7c00, 1e-8: 0, 1 + 1.0/2048: 0x3c00, 1 + 3.0/2048: 0x3c02, -2: 0xc000} {
		if got := ToHalf(f); got != want {
			t.Errorf("%v is %#x, want %#x", f, got, want)
		}
	}
}

// What is committed as device code, what runs in Go and what Load asks for are the same kernels.
func TestTheSameKernelsEverywhere(t *testing.T) {
	reference := Reference()
	if len(reference) != len(names) || bytes.Count(ptx, []byte(".visible .entry ")) != len(names) {
		t.Errorf("%d names, %d in Go, %d in PTX", len(names), len(reference), bytes.Count(ptx, []byte(".visible .entry ")))
	}
	for _, name := range names {
		if reference[name] == nil || !bytes.Contains(ptx, []byte(".entry "+name+"(")) {
			t.Errorf("kernel %s is missing somewhere", name)
		}
	}
}

// A gather beyond the table gives NaN, not another row.
func TestGatherOutOfRangeIsNaN(t *testing.T) {
	m := cuda.NewDeviceMemory(1 << 20)
	x, err := m.Alloc(16)
	index, err2 := m.Alloc(16)
	y, err3 := m.Alloc(16)
	if err != nil || err2 != nil || err3 != nil {
		t.Fatal(err, err2, err3)
	}
	copy(m.Float32s(x, 4), []float32{1, 2, 3, 4})
	copy(m.Int32s(index, 4), []int32{-1, 4, 0, -5})
	p := Gather{X: uint64(x), Index: uint64(index), Y: uint64(y), Outer: 1, Len: 4, Inner: 1, Picks: 4, Size: 4, IndexSize: 4}
	Reference()["gather"](m, cuda.Launch{Params: Bytes(&p)})
	got := m.Float32s(y, 4)
	if got[0] != 4 || got[2] != 1 || got[1] == got[1] || got[3] == got[3] {
		t.Errorf("got %v", got)
	}
}
