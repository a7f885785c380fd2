package kernels

import "unsafe"

// Activation is applied to a result before it is stored. A and B of the struct are its constants.
type Activation = int32

// The activations, which are also the operations of Unary.
const (
	None        Activation = iota
	Relu                   // max(x, 0)
	Clip                   // A ≤ x ≤ B
	LeakyRelu              // x < 0 ? A·x : x
	Sigmoid                //
	Tanh                   //
	HardSigmoid            // clamp(A·x + B, 0, 1)
	HardSwish              // x·clamp(x/6 + ½, 0, 1)
	Swish                  // x·sigmoid(x)
	Gelu                   // ½x(1 + erf(x/√2))
	GeluTanh               // its tanh approximation
	Erf                    //
	Exp                    //
	Log                    //
	Sqrt                   //
	Neg                    //
	Abs                    //
	Reciprocal             //
	Floor                  //
	Ceil                   //
	Elu                    // x < 0 ? A(eˣ − 1) : x
	Softplus               // log(1 + eˣ)
	Square                 //
)

// The operations of Binary.
const (
	Add int32 = iota
	Sub
	Mul
	Div
	Pow
	Min
	Max
)

// The operations of Reduce.
const (
	ReduceSum int32 = iota
	ReduceMean
	ReduceMax
	ReduceMin
	ReduceL2
)

// The modes of Pool.
const (
	PoolMax            int32 = iota
	PoolAverage              // over the elements inside the image
	PoolAveragePadding       // over the whole window
)

// The element types of Cast.
const (
	Float32 int32 = iota
	Int32
	Int64
	Bool
	Float16
	Uint8
	BFloat16
)

// Conv is a 2-D convolution by groups: Y[n,k,oh,ow] = act(Σ X·W + Bias[k] + Residual). X is [N,C,H,Wd] and W is
// [K,C/Groups,R,S]. If NHWC is 1, images are [N,H,Wd,C] and weights [K,R,S,C/Groups]. Bias and Residual may be 0.
type Conv struct {
	X, W, Bias, Residual, Y uint64
	N, C, H, Wd             int32
	K, OH, OW               int32
	R, S                    int32
	StrideH, StrideW        int32
	PadH, PadW              int32
	DilH, DilW              int32
	Groups                  int32
	Act                     Activation
	A, B                    float32
	NHWC                    int32
}

// Gemm is a batched matrix product with any strides: for each i < B1 and j < B2,
// C[i,j,m,n] = act(Alpha·Σₖ A·B + Beta·Bias[m,n] + Residual[i,j,m,n]). Element (m,k) of A is at
// i·A1 + j·A2 + m·AM + k·AK, element (k,n) of B at i·Bi1 + j·Bi2 + k·BK + n·BN; strides are in
// elements. Bias is at m·BiasM + n·BiasN. C and Residual are dense. Bias and Residual may be 0.
type Gemm struct {
	PA, PB, Bias, Residual, PC uint64
	A1, A2, Bi1, Bi2           int64
	AM, AK, BK, BN             int32
	BiasM, BiasN               int32
	M, N, K, B1, B2            int32
	Act                        Activation
	Alpha, Beta                float32
	A, B                       float32
}

// Pool is 2-D pooling of Planes images, Channels per element of a batch. If NHWC is 1, channels are last.
type Pool struct {
	X, Y             uint64
	Planes, H, Wd    int32
	OH, OW, R, S     int32
	StrideH, StrideW int32
	PadH, PadW       int32
	DilH, DilW       int32
	Mode             int32
	Channels, NHWC   int32
}

// RankMax is the largest number of dimensions of Binary, Where and Copy, after adjacent dimensions are joined.
const RankMax = 6

// Binary is Y = act(op(P, Q)) with broadcasting. Y is dense with Dims. P and Q have strides in elements, 0 in
// dimensions where they repeat. Unused dimensions are 1 and come first.
type Binary struct {
	P, Q, Y uint64
	Count   int64
	Dims    [RankMax]int32
	PS, QS  [RankMax]int32
	Op, Act int32
	A, B    float32
	_       [2]int32
}

// Where is Y = Cond ? P : Q with broadcasting, like Binary. Cond holds bytes.
type Where struct {
	Cond, P, Q, Y uint64
	Count         int64
	Dims          [RankMax]int32
	CS, PS, QS    [RankMax]int32
}

// Unary is Y[i] = act(X[i]).
type Unary struct {
	X, Y  uint64
	Count int64
	Act   int32
	A, B  float32
	_     int32
}

// Affine is Y = act(X·Scale[c] + Shift[c]) for channel c: a batch normalisation that no convolution could fold.
type Affine struct {
	X, Scale, Shift, Y uint64
	Count              int64
	Channels, Inner    int32
	Act                int32
	A, B               float32
	_                  int32
}

// Rows is the argument of kernels along one axis: X is [Outer, Len, Inner]. For Softmax, Op 1 means the logarithm.
// For Reduce, Op is its operation. ArgMax writes int64 and returns the first of equal values.
type Rows struct {
	X, Y              uint64
	Outer, Len, Inner int32
	Op                int32
}

// LayerNorm normalises each of Rows rows of Len; Gamma and Beta have Len elements, Beta may be 0.
// Residual, if not 0, is added to X first.
type LayerNorm struct {
	X, Gamma, Beta, Residual, Y uint64
	Rows, Len                   int32
	Epsilon                     float32
	_                           int32
}

// Copy moves elements of Size bytes (1, 2, 4 or 8): Y[Σ i·YS] = X[Σ i·XS] for every index below Dims. Strides
// are in elements and may be negative.
type Copy struct {
	X, Y   uint64
	Count  int64
	Dims   [RankMax]int32
	XS, YS [RankMax]int32
	Size   int32
	_      int32
}

// Gather takes slices along an axis. X is [Outer, Len, Inner], Index has Picks entries of IndexSize bytes, and Y is
// [Outer, Picks, Inner]. A negative index counts from the end. An index out of range gives elements with all bits
// set, which is NaN.
type Gather struct {
	X, Index, Y       uint64
	Outer, Len, Inner int32
	Picks             int32
	Size, IndexSize   int32
}

// Cast converts Count elements: Y is dense with Dims, X has strides in elements.
type Cast struct {
	X, Y     uint64
	Count    int64
	Dims, XS [RankMax]int32
	From, To int32
}

// Attention is softmax(Scale·Q·Kᵀ + Mask)·V for each of Batch·Heads. Q has Rows rows, K and V have Cols rows. A row
// has Size adjacent numbers, at most AttentionSizeMax. Strides are in elements: between elements of the batch, rows
// and heads. Mask may be 0; its strides are 0 where it repeats. Y is dense [Batch, Rows, Heads, Size].
type Attention struct {
	Q, K, V, Mask, Y               uint64
	QBatch, KBatch, VBatch, MBatch int64
	QRow, KRow, VRow               int32
	QHead, KHead, VHead            int32
	MHead, MRow, MCol              int32
	Batch, Heads, Rows, Cols, Size int32
	Scale                          float32
	_                              int32
}

// AttentionSizeMax is the largest head of Attention.
const AttentionSizeMax = 128

// Bytes returns the struct's bytes, for Submission.Launch.
func Bytes[T any](p *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p))
}

// paramsOf reads a kernel's struct from the parameters of a launch.
func paramsOf[T any](params []byte) (t T) {
	if len(params) != int(unsafe.Sizeof(t)) {
		panic("kernels: a launch with parameters of another kernel")
	}
	return *(*T)(unsafe.Pointer(unsafe.SliceData(params)))
}
