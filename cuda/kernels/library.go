package kernels

import "downbeat.dev/cuda"

// Library is a product or a convolution in the terms of cuBLASLt or cuDNN, and the part that they leave to a kernel:
// an activation of all Count results, in place.
type Library struct {
	Product     *cuda.Product
	Convolution *cuda.Convolution
	Operands    cuda.Operands
	Rest        Unary // unused if Act is None
}

var libraryTypes = map[int32]int32{Float32: cuda.LibraryFloat, Float16: cuda.LibraryHalf, BFloat16: cuda.LibraryBFloat}

// LibraryOf returns the forms in which a library can compute a kernel with params; none if it cannot.
func LibraryOf(name string, params []byte) (all []Library) {
	real := Real(name)
	switch name {
	case Named("gemm", real):
		p := paramsOf[Gemm](params)
		if l, ok := p.asProduct(real); ok {
			all = append(all, l)
		}
		if l, ok := p.asPixels(real); ok {
			all = append(all, l)
		}

	// A convolution by one pixel is a matrix product, which the product's library may run faster than the
	// convolution's.
	case Named("conv", real), Named("conv_depthwise", real):
		p := paramsOf[Conv](params)
		if t, ok := TensorOf("conv", params); ok && t.Pointwise() {
			g := Gemm{PA: p.X, PB: p.W, Bias: p.Bias, Residual: p.Residual, PC: p.Y, AM: p.C, AK: 1, BK: 1, BN: p.C, BiasN: 1,
				M: t.M, N: p.K, K: p.C, B1: 1, B2: 1, Act: p.Act, Alpha: 1, Beta: 1, A: p.A, B: p.B}
			if l, ok := g.asProduct(real); ok {
				all = append(all, l)
			}
		}
		if l, ok := p.asLibrary(real); ok {
			all = append(all, l)
		}
	}
	return all
}

// splitActivation splits an activation into the part that a library fuses and the rest.
func splitActivation(act Activation, a, b float32, real int32, gelu bool) (fused int32, rest Unary) {
	switch {
	case act == None:
		return cuda.LibraryNone, rest
	case act == Relu:
		return cuda.LibraryRelu, rest
	case gelu && real != Float32 && (act == Gelu || act == GeluTanh):
		return cuda.LibraryGelu, rest // by tanh: the two are closer to each other than half precision is to either
	}
	return cuda.LibraryNone, Unary{Act: act, A: a, B: b}
}

func oneIf(p uint64) int32 {
	if p != 0 {
		return 1
	}
	return 0
}

// asProduct returns a product whose rows or columns are adjacent and whose batches, if any, are evenly spaced.
func (p *Gemm) asProduct(real int32) (l Library, ok bool) {
	d := cuda.Product{Type: libraryTypes[real], Bias: oneIf(p.Bias), Residual: oneIf(p.Residual), M: p.M, N: p.N, K: p.K, Batch: p.B1 * p.B2,
		LDA: int64(p.AM), LDB: int64(p.BK), Alpha: p.Alpha}

	// A matrix whose neighbors are a stride apart is the transpose of one whose neighbors are adjacent.
	if p.AK != 1 {
		d.TransA, d.LDA = 1, int64(p.AK)
	}
	if p.BN != 1 {
		d.TransB, d.LDB = 1, int64(p.BN)
	}

	// The library has one stride between batches. Two batch dimensions fit it if the outer stride is a whole multiple
	// of the inner, or one dimension is 1.
	switch {
	case p.B1 == 1:
		d.StrideA, d.StrideB = p.A2, p.Bi2
	case p.B2 == 1:
		d.StrideA, d.StrideB = p.A1, p.Bi1
	default:
		d.StrideA, d.StrideB = p.A2, p.Bi2
		ok = p.A1 != p.A2*int64(p.B2) || p.Bi1 != p.Bi2*int64(p.B2)
	}
	if ok || p.AK != 1 && p.AM != 1 || p.BN != 1 && p.BK != 1 || p.Bias != 0 && (p.Beta != 1 || p.BiasM != 0 || p.BiasN != 1) {
		return l, false
	}

	d.Act, l.Rest = splitActivation(p.Act, p.A, p.B, real, true)
	l.Product, l.Operands = &d, cuda.Operands{A: p.PA, B: p.PB, Bias: p.Bias, Residual: p.Residual, D: p.PC}
	return l.finishCall(int64(d.Batch) * int64(p.M) * int64(p.N)), true
}

// asPixels returns a convolution by one pixel, which lowering emits as a product of the weights and each image.
func (p *Gemm) asPixels(real int32) (l Library, ok bool) {
	// Lowering emits this form: the same weights for each image, one bias for each row of them.
	if p.B2 != 1 || p.A1 != 0 || p.AM != p.K || p.AK != 1 || p.BK != p.N || p.BN != 1 || p.Bi1 != int64(p.K)*int64(p.N) ||
		p.Alpha != 1 || p.Bias != 0 && (p.BiasM != 1 || p.BiasN != 0 || p.Beta != 1) {
		return l, false
	}

	c := Conv{X: p.PB, W: p.PA, Bias: p.Bias, Residual: p.Residual, Y: p.PC, N: p.B1, C: p.K, H: 1, Wd: p.N, K: p.M, OH: 1, OW: p.N, R: 1, S: 1,
		StrideH: 1, StrideW: 1, DilH: 1, DilW: 1, Groups: 1, Act: p.Act, A: p.A, B: p.B}
	return c.asLibrary(real)
}

// asLibrary returns a convolution; the library adds a residual only together with a bias, and only then applies an
// activation.
func (p *Conv) asLibrary(real int32) (l Library, ok bool) {
	if p.Bias == 0 && p.Residual != 0 {
		return l, false
	}

	d := cuda.Convolution{Type: libraryTypes[real], Bias: oneIf(p.Bias), Residual: oneIf(p.Residual), NHWC: p.NHWC, N: p.N, C: p.C, H: p.H, W: p.Wd,
		K: p.K, OH: p.OH, OW: p.OW, R: p.R, S: p.S, StrideH: p.StrideH, StrideW: p.StrideW, PadH: p.PadH, PadW: p.PadW,
		DilH: p.DilH, DilW: p.DilW, Groups: p.Groups}

	// Without a bias the library applies no activation: a separate kernel does.
	if p.Bias != 0 {
		d.Act, l.Rest = splitActivation(p.Act, p.A, p.B, real, false)
	} else {
		l.Rest = Unary{Act: p.Act, A: p.A, B: p.B}
	}

	l.Convolution, l.Operands = &d, cuda.Operands{A: p.X, B: p.W, Bias: p.Bias, Residual: p.Residual, D: p.Y}
	return l.finishCall(int64(p.N) * int64(p.K) * int64(p.OH) * int64(p.OW)), true
}

func (l Library) finishCall(count int64) Library {
	l.Rest.X, l.Rest.Y, l.Rest.Count = l.Operands.D, l.Operands.D, count
	return l
}
