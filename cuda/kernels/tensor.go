package kernels

import (
	"cmp"
	"slices"
	"strings"

	"downbeat.dev/cuda"
)

// Tensor is a product or a convolution on tensor cores: Y[m,k] = act(Alpha·Σ X·W + Bias[k] + Residual[m,k]). Row m of
// X holds the elements that the window over pixel m of [N,H,Wd,C] covers; W is [K,R,S,C]. Act is at most GeluTanh.
//
// With several Splits of the depth, each split writes M·K floats to Partial, and the last one adds them up. Counters
// has one word for each tile, which is zero before and after a launch.
type Tensor struct {
	X, W, Bias, Residual, Y uint64
	Partial, Counters       uint64
	M, C, H, Wd             int32
	K, OH, OW               int32
	R, S                    int32
	StrideH, StrideW        int32
	PadH, PadW              int32
	DilH, DilW              int32
	Act                     Activation
	Splits                  int32
	Alpha, A, B             float32
}

// tile is the part of the output that a block of a tensor kernel computes; csrc/tensor.cu has the same list.
type tile struct {
	name       string
	rows, cols int32
	stages     int32
}

var tileList = []tile{
	{"tensor_256x128", 256, 128, 3}, {"tensor_128x128", 128, 128, 3}, {"tensor_128x64", 128, 64, 4},
	{"tensor_64x128", 64, 128, 4}, {"tensor_64x64", 64, 64, 4}, {"tensor_32x64", 32, 64, 4},
}

// tensorDepth is the depth of one stage.
const tensorDepth = 64

func (t *tile) sharedBytes() uint32 { return uint32((t.rows + t.cols) * tensorDepth * 2 * t.stages) }

var attentionSizes = map[int32]string{32: "attention_32", 64: "attention_64"}

const attentionRows, attentionThreads = 64, 128

func tensorKernelNames() (all []string) {
	for _, suffix := range []string{"_f16", "_bf16"} {
		for i := range tileList {
			all = append(all, tileList[i].name+suffix)
		}
		for _, name := range attentionSizes {
			all = append(all, name+suffix)
		}
	}
	return all
}

// Counters is the largest number of 32-bit zeros that a Tensor with splits needs.
const Counters = 4096

// Variant is another way to compute a kernel's result.
type Variant struct {
	Name        string
	Grid, Block cuda.Dim
	Shared      uint32
	Params      []byte // the addresses of the kernel that it replaces, then those of Partial and Counters, then the rest
	Addresses   int
	Workspace   int64 // bytes at Partial
}

// Variants returns faster ways to run a kernel on this device, the most promising first; nil if there are none.
func (s *Set) Variants(name string, params []byte) []Variant {
	if !s.Tensor() || Real(name) == Float32 {
		return nil
	}

	base := strings.TrimSuffix(name, Suffix(Real(name)))
	if base == "attention" {
		return attentionVariants(paramsOf[Attention](params), Suffix(Real(name)))
	}

	p, ok := TensorOf(base, params)
	if !ok {
		return nil
	}

	d := s.dev.Properties()
	return p.tileVariants(Suffix(Real(name)), int64(max(d.Multiprocessors, 1)), sharedMax(d))
}

// sharedMax returns the most shared memory that a block can have (CUDA C++ Programming Guide, table of technical
// specifications).
func sharedMax(p cuda.Properties) uint32 {
	switch {
	case p.ComputeMajor == 8 && p.ComputeMinor != 0 && p.ComputeMinor != 7 || p.ComputeMajor == 12:
		return 99 << 10
	case p.ComputeMajor == 8:
		return 163 << 10
	}
	return 226 << 10
}

// TensorOf returns a convolution ("conv") or a product ("gemm") as a Tensor with one split. It returns false for one
// that a Tensor cannot express: with groups, batched, transposed, or with another activation.
func TensorOf(base string, params []byte) (t Tensor, ok bool) {
	switch base {
	case "conv":
		p := paramsOf[Conv](params)
		t = Tensor{X: p.X, W: p.W, Bias: p.Bias, Residual: p.Residual, Y: p.Y, M: p.N * p.OH * p.OW, C: p.C, H: p.H, Wd: p.Wd,
			K: p.K, OH: p.OH, OW: p.OW, R: p.R, S: p.S, StrideH: p.StrideH, StrideW: p.StrideW, PadH: p.PadH, PadW: p.PadW,
			DilH: p.DilH, DilW: p.DilW, Act: p.Act, Splits: 1, Alpha: 1, A: p.A, B: p.B}
		ok = p.NHWC == 1 && p.Groups == 1
	case "gemm":
		p := paramsOf[Gemm](params)
		t = Tensor{X: p.PA, W: p.PB, Bias: p.Bias, Residual: p.Residual, Y: p.PC, M: p.M, C: p.K, H: 1, Wd: 1, K: p.N, OH: 1, OW: 1,
			R: 1, S: 1, StrideH: 1, StrideW: 1, DilH: 1, DilW: 1, Act: p.Act, Splits: 1, Alpha: p.Alpha, A: p.A, B: p.B}
		// Both sides must be stored with the depth innermost: A as [M,K], B as [N,K].
		ok = p.B1*p.B2 == 1 && p.AK == 1 && p.AM == p.K && p.BK == 1 && p.BN == p.K &&
			(p.Bias == 0 || p.Beta == 1 && p.BiasM == 0 && p.BiasN == 1)
	}
	return t, ok && t.Act <= GeluTanh
}

// Pointwise reports whether t is a plain product of X [M, C] and W [K, C].
func (t *Tensor) Pointwise() bool {
	return t.R == 1 && t.S == 1 && t.StrideH == 1 && t.StrideW == 1 && t.PadH == 0 && t.PadW == 0
}

// tileVariants returns every tile that fits, with each number of splits that keeps the multiprocessors busy.
func (t Tensor) tileVariants(suffix string, processors int64, shared uint32) []Variant {
	type choice struct {
		v    Variant
		cost float64
	}

	var all []choice
	steps := int64((t.R*t.S*t.C + tensorDepth - 1) / tensorDepth)
	for i := range tileList {
		k := &tileList[i]

		blocks := int64((t.M+k.rows-1)/k.rows) * int64((t.K+k.cols-1)/k.cols)

		// A tile that is half empty never wins; one that does not fit the shared memory cannot run.
		if k.sharedBytes() > shared || k.rows > 64 && k.rows/2 >= t.M || k.cols > 64 && k.cols/2 >= t.K {
			continue
		}

		// Splitting the sum over more blocks pays only while multiprocessors would be idle.
		for splits := int64(1); splits <= 16 && splits <= steps; splits *= 2 {
			if splits > 1 && (blocks*splits > 2*processors || blocks > Counters || steps/splits < 2) {
				break
			}

			p := t
			p.Splits = int32(splits)
			v := Variant{Name: k.name + suffix, Grid: cuda.Dim{X: uint32(blocks), Y: uint32(splits), Z: 1}, Block: cuda.Dim{X: threads, Y: 1, Z: 1},
				Shared: k.sharedBytes(), Params: slices.Clone(Bytes(&p)), Addresses: 7}
			// Each split stores its sums as float32, and the last one adds them up.
			if splits > 1 {
				v.Workspace = splits * int64(t.M) * int64(t.K) * 4
			}
			all = append(all, choice{v, k.estimateCost(blocks, splits, steps, processors)})
		}
	}

	// Ties keep the order of the list, so that every run tries the same variant first.
	slices.SortStableFunc(all, func(a, b choice) int { return cmp.Compare(a.cost, b.cost) })
	out := make([]Variant, len(all))
	for i := range all {
		out[i] = all[i].v
	}
	return out
}

// estimateCost estimates the nanoseconds on one multiprocessor, from its share of an H200's matrix rate with mma.sync
// and of the second-level cache's bandwidth. It only orders the candidates.
func (t *tile) estimateCost(blocks, splits, steps, processors int64) float64 {
	const flop, bytes, begin, join = 4500.0, 40.0, 1500.0, 2500.0 // per ns, per ns, ns, ns
	step := max(float64(t.rows)*float64(t.cols)*tensorDepth*2/flop, float64(t.rows+t.cols)*tensorDepth*2/bytes)
	waves := float64((blocks*splits + processors - 1) / processors)

	cost := waves*step*float64((steps+splits-1)/splits) + begin
	// The partial sums are written once and read once.
	if splits > 1 {
		cost += join + float64(splits)*float64(t.rows)*float64(t.cols)*8/bytes
	}
	return cost
}

func attentionVariants(p Attention, suffix string) []Variant {
	name, ok := attentionSizes[p.Size]
	for _, stride := range []int64{p.QBatch, p.KBatch, p.VBatch, int64(p.QRow), int64(p.KRow), int64(p.VRow), int64(p.QHead), int64(p.KHead), int64(p.VHead)} {
		ok = ok && stride%8 == 0 // the kernel copies eight numbers at a time
	}
	if !ok {
		return nil
	}

	blocks := int64(p.Batch) * int64(p.Heads) * int64((p.Rows+attentionRows-1)/attentionRows)
	return []Variant{{Name: name + suffix, Grid: cuda.Dim{X: uint32(blocks), Y: 1, Z: 1}, Block: cuda.Dim{X: attentionThreads, Y: 1, Z: 1},
		Params: slices.Clone(Bytes(&p)), Addresses: 5}}
}
