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

// TestTheSameKernelsEverywhere shows that the committed device code, the Go kernels and the kernels that Load
// requires are the same set.
func TestTheSameKernelsEverywhere(t *testing.T) {
	reference := Reference()
	var halves [2][]string
	for name := range forms {
		for i, real := range []int32{Float16, BFloat16} {
			halves[i] = append(halves[i], Named(name, real))
		}
	}
	for _, m := range []struct {
		image []byte
		names []string
		inGo  bool
	}{{ptx, names, true}, {ptxF16, halves[0], true}, {ptxBF16, halves[1], true}, {ptxTensor, tensorKernelNames(), false}} {
		if got := bytes.Count(m.image, []byte(".visible .entry ")); got != len(m.names) {
			t.Errorf("%d names of %s and others, %d in PTX", len(m.names), m.names[0], got)
		}
		for _, name := range m.names {
			if !bytes.Contains(m.image, []byte(".entry "+name+"(")) || m.inGo && reference[name] == nil {
				t.Errorf("kernel %s is missing somewhere", name)
			}
		}
	}
}

// TestTensorOfTakesWhatItCanExpress shows that a product or a convolution becomes a Tensor only if tensor kernels can
// compute it.
func TestTensorOfTakesWhatItCanExpress(t *testing.T) {
	product := Gemm{AM: 64, AK: 1, BK: 1, BN: 64, M: 3, N: 5, K: 64, B1: 1, B2: 1, Alpha: 1, Beta: 1}
	for want, change := range map[bool]func(g *Gemm){true: func(*Gemm) {}, false: func(g *Gemm) { g.BK, g.BN = 5, 1 }} {
		g := product
		change(&g)
		if _, ok := TensorOf("gemm", Bytes(&g)); ok != want {
			t.Errorf("product %+v: %v", g, ok)
		}
	}
	image := Conv{N: 2, C: 8, H: 5, Wd: 5, K: 3, OH: 5, OW: 5, R: 3, S: 3, StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilH: 1, DilW: 1, Groups: 1, NHWC: 1}
	got, ok := TensorOf("conv", Bytes(&image))
	if !ok || got.M != 50 || got.C != 8 || got.Splits != 1 {
		t.Errorf("%v %+v", ok, got)
	}
	image.Groups = 8
	if _, ok := TensorOf("conv", Bytes(&image)); ok {
		t.Error("a convolution by groups was taken")
	}
	for _, v := range got.tileVariants("_f16", 132, 226<<10) {
		if v.Grid.X == 0 || v.Grid.Y == 0 || len(v.Params) != 136 {
			t.Errorf("%+v", v)
		}
	}
}

func TestBFloatRoundsToNearestEven(t *testing.T) {
	for f, want := range map[float32]uint16{1: 0x3f80, 1 + 1.0/256: 0x3f80, 1 + 3.0/256: 0x3f82, -2: 0xc000, 3.4e38: 0x7f80} {
		if got := ToBFloat(f); got != want {
			t.Errorf("%v is %#x, want %#x", f, got, want)
		}
	}
	if f := FromBFloat(ToBFloat(float32(math.NaN()))); f == f {
		t.Error("NaN is lost")
	}
}

// TestGatherOutOfRangeIsNaN shows that a gather beyond the table gives NaN and not another row.
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
