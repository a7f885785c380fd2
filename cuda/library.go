package cuda

// Libraries are cuBLASLt and cuDNN, if the host has them. They belong to the goroutine that submits.
type Libraries struct {
	names string
	state libraries
}

// Names returns the libraries found, with versions; "" for none.
func (l *Libraries) Names() string {
	if l == nil {
		return ""
	}
	return l.names
}

// The number types and the activations that libraries compute.
const (
	LibraryFloat int32 = iota
	LibraryHalf
	LibraryBFloat
)

// The activations that libraries fuse.
const (
	LibraryNone int32 = iota
	LibraryRelu
	LibraryGelu // the tanh approximation
)

// Product is D[i] = act(Alpha·A[i]·B[i] + bias[n] + residual[i]) for i < Batch, row-major with D dense. A is [M,K],
// or [K,M] if TransA is 1, with rows LDA elements apart; B likewise. Bias and Residual are 1 if there is one. The
// layout is that of gpu_product in library.h.
type Product struct {
	Type, Act, Bias, Residual      int32
	M, N, K, Batch, TransA, TransB int32
	LDA, LDB, StrideA, StrideB     int64
	Alpha                          float32
	_                              int32
}

// Convolution is act(X*W + bias + residual) by groups; the layout is that of gpu_convolution in library.h.
type Convolution struct {
	Type, Act, Bias, Residual, NHWC int32
	N, C, H, W, K, OH, OW, R, S     int32
	StrideH, StrideW, PadH, PadW    int32
	DilH, DilW, Groups              int32
}

// Operands are the parameters of a library's call: addresses, then the call (Candidate.State).
type Operands struct {
	A, B, Bias, Residual, D, Workspace uint64
	State                              uint64
}

// Candidate is one way of a library to compute a product or a convolution. Its kernel takes Operands; grid and block
// do not matter. Free it once no submission and no graph refers to it.
type Candidate struct {
	Kernel    Kernel
	State     uint64
	Workspace int64 // bytes at Operands.Workspace
	Algorithm int   // the library's number, or the position in the library's own order
}
