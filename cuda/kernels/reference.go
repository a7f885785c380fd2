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

// applyActivation applies an activation.
func applyActivation(kind Activation, x, a, b float64) float64 {
	// NaN passes through every clamp, so that an invalid result stays visible.
	switch kind {
	case Relu:
		return keepNaN(x, max(x, 0))
	case Clip:
		return keepNaN(x, min(max(x, a), b))
	case LeakyRelu:
		if x < 0 {
			return a * x
		}
	case Sigmoid:
		return 1 / (1 + math.Exp(-x))
	case Tanh:
		return math.Tanh(x)
	case HardSigmoid:
		return keepNaN(x, min(max(a*x+b, 0), 1))
	case HardSwish:
		return x * keepNaN(x, min(max(x/6+0.5, 0), 1))
	case Swish:
		return x / (1 + math.Exp(-x))
	case Gelu:
		return 0.5 * x * (1 + math.Erf(x/math.Sqrt2))
	case GeluTanh:
		return 0.5 * x * (1 + math.Tanh(0.7978845608028654*(x+0.044715*x*x*x)))
	default:
		return actMath(kind, x, a)
	}
	return x
}

func actMath(kind Activation, x, a float64) float64 {
	switch kind {
	case Erf:
		return math.Erf(x)
	case Exp:
		return math.Exp(x)
	case Log:
		return math.Log(x)
	case Sqrt:
		return math.Sqrt(x)
	case Neg:
		return -x
	case Abs:
		return math.Abs(x)
	case Reciprocal:
		return 1 / x
	case Floor:
		return math.Floor(x)
	case Ceil:
		return math.Ceil(x)
	case Elu:
		// Near 0 a difference of exponentials would lose digits.
		if x < 0 {
			return a * math.Expm1(x)
		}
	case Softplus:
		// This form does not overflow for any x.
		return math.Log1p(math.Exp(-math.Abs(x))) + max(x, 0)
	case Square:
		return x * x
	}
	return x
}

// keepNaN returns NaN if the input x is NaN, and y otherwise.
func keepNaN(x, y float64) float64 {
	if math.IsNaN(x) {
		return x
	}
	return y
}

func convDepthwise(m *numbers, l cuda.Launch) { runConv(m, l) }

// image describes the position of an image's elements, in either layout.
type image struct{ c, h, w, y, x, image int }

func imageOf(c, h, w int, nhwc int32) image {
	if nhwc != 0 {
		return image{c: 1, y: w * c, x: c, image: c * h * w, h: h, w: w}
	}
	return image{c: h * w, y: w, x: 1, image: c * h * w, h: h, w: w}
}

func runConv(m *numbers, l cuda.Launch) {
	p := paramsOf[Conv](l.Params)
	n, c, h, w, k := int(p.N), int(p.C), int(p.H), int(p.Wd), int(p.K)
	oh, ow, r, s, groups := int(p.OH), int(p.OW), int(p.R), int(p.S), int(p.Groups)
	cg, kg := c/groups, k/groups
	x, wt := m.readNumbers(p.X, n*c*h*w), m.readNumbers(p.W, k*cg*r*s)
	bias, res := m.readOptional(p.Bias, k), m.readOptional(p.Residual, n*k*oh*ow)
	y := m.resultRoom(p.Y, n*k*oh*ow)

	// Both layouts use the same loops; only the strides differ.
	in, out, weight := imageOf(c, h, w, p.NHWC), imageOf(k, oh, ow, p.NHWC), imageOf(cg, r, s, p.NHWC)

	line := make([]float64, ow)
	for i := range n * k * oh { // one output line at a time; its sums run over c, r, s
		ni, ki, oi := i/(k*oh), i/oh%k, i%oh
		clear(line)

		for ci := range cg {
			for ri := range r {
				yi := oi*int(p.StrideH) - int(p.PadH) + ri*int(p.DilH)
				// Padding lies outside the image and adds nothing.
				if yi < 0 || yi >= h {
					continue
				}

				row := x[ni*in.image+(ki/kg*cg+ci)*in.c+yi*in.y:]
				for si := range s {
					v := float64(wt[ki*weight.image+ci*weight.c+ri*weight.y+si*weight.x])
					convLine(line, row, in.x, w, v, int(p.StrideW), si*int(p.DilW)-int(p.PadW))
				}
			}
		}

		// The order of the epilogue is that of the kernels: bias, residual, activation.
		for j, v := range line {
			at := ni*out.image + ki*out.c + oi*out.y + j*out.x
			if bias != nil {
				v += float64(bias[ki])
			}
			if res != nil {
				v += float64(res[at])
			}
			y[at] = float32(applyActivation(p.Act, v, float64(p.A), float64(p.B)))
		}
	}
}

// convLine adds weight times the elements of a row of n that lie under each output; pitch is the distance of adjacent
// elements.
func convLine(line []float64, row []float32, pitch, n int, weight float64, stride, at int) {
	for j := range line {
		if xi := j*stride + at; xi >= 0 && xi < n {
			line[j] += weight * float64(row[xi*pitch])
		}
	}
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
