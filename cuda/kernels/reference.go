package kernels

import (
	"math"
	"sync"

	"downbeat.dev/cuda"
)

// Reference returns the Go forms by name, for cuda.Emulation.Kernels.
func Reference() map[string]cuda.KernelFunc {
	all := map[string]cuda.KernelFunc{"binary_int64": binaryInt64, "copy": copyStrided, "gather": runGather, "cast": runCast}

	// One Go form serves all three types of real numbers: it sees float32, whatever the stored type.
	for name, form := range forms {
		for _, real := range []int32{Float32, Float16, BFloat16} {
			all[name+Suffix(real)] = func(m *cuda.DeviceMemory, l cuda.Launch) {
				n := spare.Get().(*numbers)
				n.DeviceMemory, n.real = m, real
				form(n, l)
				n.storeResults()

				// Pooled values must not keep a device's memory.
				n.DeviceMemory, n.out = nil, n.out[:0]
				spare.Put(n)
			}
		}
	}
	return all
}

// spare is a pool, so that a launch allocates nothing.
var spare = sync.Pool{New: func() any { return new(numbers) }}

// forms are the kernels that exist for each type of real numbers.
var forms = map[string]func(*numbers, cuda.Launch){
	"conv": runConv, "conv_depthwise": convDepthwise, "gemm": runGemm, "pool": runPool, "binary": runBinary, "where": runWhere, "unary": runUnary,
	"affine": runAffine, "softmax": runSoftmax, "reduce": runReduce, "argmax": runArgmax, "layernorm": layerNorm, "attention": runAttention,
}

// Named returns a kernel's name for a type of real numbers; kernels without types keep their name.
func Named(name string, real int32) string {
	if forms[name] == nil {
		return name
	}
	return name + Suffix(real)
}

// Suffix returns the suffix of a kernel's name for a type of real numbers: Float32, Float16 or BFloat16.
func Suffix(real int32) string {
	switch real {
	case Float16:
		return "_f16"
	case BFloat16:
		return "_bf16"
	}
	return ""
}

func runGemm(m *numbers, l cuda.Launch) {
	p := paramsOf[Gemm](l.Params)
	M, N, K, b1, b2 := int(p.M), int(p.N), int(p.K), int(p.B1), int(p.B2)
	// A stride of 0 repeats a row or a batch, so sizes follow from strides.
	a := m.readNumbers(p.PA, spanOf(extent{p.A1, b1}, extent{p.A2, b2}, extent{int64(p.AM), M}, extent{int64(p.AK), K}))
	b := m.readNumbers(p.PB, spanOf(extent{p.Bi1, b1}, extent{p.Bi2, b2}, extent{int64(p.BK), K}, extent{int64(p.BN), N}))
	c := m.resultRoom(p.PC, b1*b2*M*N)
	bias := m.readOptional(p.Bias, spanOf(extent{int64(p.BiasM), M}, extent{int64(p.BiasN), N}))
	res := m.readOptional(p.Residual, b1*b2*M*N)

	line := make([]float64, N)

	for i := range b1 * b2 * M {
		bi, bj, mi := i/(b2*M), i/M%b2, i%M
		ra := a[int64(bi)*p.A1+int64(bj)*p.A2+int64(mi)*int64(p.AM):]
		rb := b[int64(bi)*p.Bi1+int64(bj)*p.Bi2:]
		clear(line)

		for k := range K {
			av := float64(ra[k*int(p.AK)])
			for n := range line {
				line[n] += av * float64(rb[k*int(p.BK)+n*int(p.BN)])
			}
		}

		for n, v := range line {
			// The order of the epilogue is that of the kernels: scale, bias, residual, activation.
			v *= float64(p.Alpha)
			if bias != nil {
				v += float64(p.Beta) * float64(bias[mi*int(p.BiasM)+n*int(p.BiasN)])
			}
			if res != nil {
				v += float64(res[i*N+n])
			}
			c[i*N+n] = float32(applyActivation(p.Act, v, float64(p.A), float64(p.B)))
		}
	}
}

// extent is one dimension of a strided view.
type extent struct {
	stride int64
	n      int
}

// spanOf returns the number of elements that a view spans.
func spanOf(view ...extent) int {
	last := int64(0)
	for _, e := range view {
		last += e.stride * int64(e.n-1)
	}
	return int(last) + 1
}

func runPool(m *numbers, l cuda.Launch) {
	p := paramsOf[Pool](l.Params)
	h, w, oh, ow, c := int(p.H), int(p.Wd), int(p.OH), int(p.OW), int(p.Channels)
	x, y := m.readNumbers(p.X, int(p.Planes)*h*w), m.resultRoom(p.Y, int(p.Planes)*oh*ow)
	in, out := imageOf(c, h, w, p.NHWC), imageOf(c, oh, ow, p.NHWC)

	for i := range y {
		ni, ci, oi, oj := i/(c*oh*ow), i/(oh*ow)%c, i/ow%oh, i%ow
		plane := x[ni*in.image+ci*in.c:]
		top, left := oi*int(p.StrideH)-int(p.PadH), oj*int(p.StrideW)-int(p.PadW)

		best, sum, n := math.Inf(-1), 0.0, 0
		for r := range int(p.R) {
			for s := range int(p.S) {
				yi, xi := top+r*int(p.DilH), left+s*int(p.DilW)
				if yi < 0 || yi >= h || xi < 0 || xi >= w {
					continue
				}

				v := float64(plane[yi*in.y+xi*in.x])
				best, sum, n = max(best, v), sum+v, n+1
			}
		}

		// The average divides by the pixels inside the image, or by the whole window if padding counts.
		if p.Mode == PoolAverage {
			best = sum / float64(max(n, 1))
		} else if p.Mode == PoolAveragePadding {
			best = sum / float64(p.R*p.S)
		}

		y[ni*out.image+ci*out.c+oi*out.y+oj*out.x] = float32(best)
	}
}

func runUnary(m *numbers, l cuda.Launch) {
	p := paramsOf[Unary](l.Params)
	x, y := m.readNumbers(p.X, int(p.Count)), m.resultRoom(p.Y, int(p.Count))
	for i := range y {
		y[i] = float32(applyActivation(p.Act, float64(x[i]), float64(p.A), float64(p.B)))
	}
}

func runAffine(m *numbers, l cuda.Launch) {
	p := paramsOf[Affine](l.Params)
	x, y := m.readNumbers(p.X, int(p.Count)), m.resultRoom(p.Y, int(p.Count))
	scale, shift := m.readNumbers(p.Scale, int(p.Channels)), m.readNumbers(p.Shift, int(p.Channels))
	for i := range y {
		c := i / int(p.Inner) % int(p.Channels)
		y[i] = float32(applyActivation(p.Act, float64(x[i])*float64(scale[c])+float64(shift[c]), float64(p.A), float64(p.B)))
	}
}
