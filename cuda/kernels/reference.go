package kernels

import (
	"math"

	"downbeat.dev/cuda"
)

// Reference returns the Go forms by name, for cuda.Emulation.Kernels.
func Reference() map[string]cuda.KernelFunc {
	return map[string]cuda.KernelFunc{
		"conv": conv, "conv_depthwise": conv, "gemm": gemm, "pool": pool,
		"binary": binary, "binary_int64": binaryInt64, "where": where, "unary": unary, "affine": affine,
		"softmax": softmax, "reduce": reduce, "argmax": argmax, "layernorm": layerNorm,
		"copy": copyStrided, "gather": gather, "cast": cast,
	}
}

// act applies an activation.
func act(kind Activation, x, a, b float64) float64 {
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
		if x < 0 {
			return a * math.Expm1(x)
		}
	case Softplus:
		return math.Log1p(math.Exp(-math.Abs(x))) + max(x, 0)
	case Square:
		return x * x
	}
	return x
}

// keepNaN: a NaN input stays NaN, whatever clamps it.
func keepNaN(x, y float64) float64 {
	if math.IsNaN(x) {
		return x
	}
	return y
}

// optional returns n floats, nil for the address 0.
func optional(m *cuda.DeviceMemory, p uint64, n int) []float32 {
	if p == 0 {
		return nil
	}
	return m.Float32s(cuda.Address(p), n)
}

func floats(m *cuda.DeviceMemory, p uint64, n int) []float32 { return m.Float32s(cuda.Address(p), n) }

func conv(m *cuda.DeviceMemory, l cuda.Launch) {
	p := from[Conv](l.Params)
	n, c, h, w, k := int(p.N), int(p.C), int(p.H), int(p.Wd), int(p.K)
	oh, ow, r, s, groups := int(p.OH), int(p.OW), int(p.R), int(p.S), int(p.Groups)
	cg, kg := c/groups, k/groups
	x, wt := floats(m, p.X, n*c*h*w), floats(m, p.W, k*cg*r*s)
	bias, res := optional(m, p.Bias, k), optional(m, p.Residual, n*k*oh*ow)
	y := floats(m, p.Y, n*k*oh*ow)
	line := make([]float64, ow)
	for i := range n * k * oh { // one output line at a time; its sums run over c, r, s
		ni, ki, oi := i/(k*oh), i/oh%k, i%oh
		clear(line)
		for ci := range cg {
			for ri := range r {
				yi := oi*int(p.StrideH) - int(p.PadH) + ri*int(p.DilH)
				if yi < 0 || yi >= h {
					continue
				}
				row := x[((ni*c+ki/kg*cg+ci)*h+yi)*w:][:w]
				for si := range s {
					convLine(line, row, float64(wt[((ki*cg+ci)*r+ri)*s+si]), int(p.StrideW), si*int(p.DilW)-int(p.PadW))
				}
			}
		}
		out := y[i*ow:][:ow]
		for j, v := range line {
			if bias != nil {
				v += float64(bias[ki])
			}
			if res != nil {
				v += float64(res[i*ow+j])
			}
			out[j] = float32(act(p.Act, v, float64(p.A), float64(p.B)))
		}
	}
}

// convLine adds weight times the elements of row that lie under each output.
func convLine(line []float64, row []float32, weight float64, stride, at int) {
	for j := range line {
		if xi := j*stride + at; xi >= 0 && xi < len(row) {
			line[j] += weight * float64(row[xi])
		}
	}
}

func gemm(m *cuda.DeviceMemory, l cuda.Launch) {
	p := from[Gemm](l.Params)
	M, N, K, b1, b2 := int(p.M), int(p.N), int(p.K), int(p.B1), int(p.B2)
	a := floats(m, p.PA, span(extent{p.A1, b1}, extent{p.A2, b2}, extent{int64(p.AM), M}, extent{int64(p.AK), K}))
	b := floats(m, p.PB, span(extent{p.Bi1, b1}, extent{p.Bi2, b2}, extent{int64(p.BK), K}, extent{int64(p.BN), N}))
	c := floats(m, p.PC, b1*b2*M*N)
	bias := optional(m, p.Bias, span(extent{int64(p.BiasM), M}, extent{int64(p.BiasN), N}))
	res := optional(m, p.Residual, b1*b2*M*N)
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
			v *= float64(p.Alpha)
			if bias != nil {
				v += float64(p.Beta) * float64(bias[mi*int(p.BiasM)+n*int(p.BiasN)])
			}
			if res != nil {
				v += float64(res[i*N+n])
			}
			c[i*N+n] = float32(act(p.Act, v, float64(p.A), float64(p.B)))
		}
	}
}

// extent is one dimension of a strided view.
type extent struct {
	stride int64
	n      int
}

// span returns how many elements a view reaches over.
func span(view ...extent) int {
	last := int64(0)
	for _, e := range view {
		last += e.stride * int64(e.n-1)
	}
	return int(last) + 1
}

func pool(m *cuda.DeviceMemory, l cuda.Launch) {
	p := from[Pool](l.Params)
	h, w, oh, ow := int(p.H), int(p.Wd), int(p.OH), int(p.OW)
	x, y := floats(m, p.X, int(p.Planes)*h*w), floats(m, p.Y, int(p.Planes)*oh*ow)
	for i := range y {
		plane := x[i/(oh*ow)*h*w:][:h*w]
		top, left := i/ow%oh*int(p.StrideH)-int(p.PadH), i%ow*int(p.StrideW)-int(p.PadW)
		best, sum, n := math.Inf(-1), 0.0, 0
		for r := range int(p.R) {
			for s := range int(p.S) {
				yi, xi := top+r*int(p.DilH), left+s*int(p.DilW)
				if yi < 0 || yi >= h || xi < 0 || xi >= w {
					continue
				}
				v := float64(plane[yi*w+xi])
				best, sum, n = max(best, v), sum+v, n+1
			}
		}
		switch p.Mode {
		case PoolMax:
			y[i] = float32(best)
		case PoolAverage:
			y[i] = float32(sum / float64(max(n, 1)))
		default:
			y[i] = float32(sum / float64(p.R*p.S))
		}
	}
}

func unary(m *cuda.DeviceMemory, l cuda.Launch) {
	p := from[Unary](l.Params)
	x, y := floats(m, p.X, int(p.Count)), floats(m, p.Y, int(p.Count))
	for i := range y {
		y[i] = float32(act(p.Act, float64(x[i]), float64(p.A), float64(p.B)))
	}
}

func affine(m *cuda.DeviceMemory, l cuda.Launch) {
	p := from[Affine](l.Params)
	x, y := floats(m, p.X, int(p.Count)), floats(m, p.Y, int(p.Count))
	scale, shift := floats(m, p.Scale, int(p.Channels)), floats(m, p.Shift, int(p.Channels))
	for i := range y {
		c := i / int(p.Inner) % int(p.Channels)
		y[i] = float32(act(p.Act, float64(x[i])*float64(scale[c])+float64(shift[c]), float64(p.A), float64(p.B)))
	}
}
