package layers

import (
	"fmt"
	"slices"

	"downbeat.dev/cuda/kernels"
)

func lowerConv(c *compiler, n *Node) error {
	if err := c.requireFloat(0, 1, 2); err != nil {
		return err
	}

	x, w := c.anyInput(0), c.plainInput(1)
	groups := c.intAttr("group", 1)
	rank := len(x.Dims) - 2
	if rank < 1 || rank > 2 || len(w.Dims) != len(x.Dims) {
		return fmt.Errorf("shapes %v and %v: 1 or 2 dimensions are supported: %w", x.Dims, w.Dims, ErrUnsupported)
	}

	k := w.Dims[0]
	if groups < 1 || k%groups != 0 || x.Dims[1] != w.Dims[1]*groups {
		return fmt.Errorf("%d groups of %v for %v", groups, w.Dims, x.Dims)
	}

	g, err := c.readWindow(x.Dims[2:], w.Dims[2:])
	if err != nil {
		return err
	}

	dims := append([]int{x.Dims[0], k}, g.out[2-rank:]...)

	// Tensor cores need images with channels last.
	if x, err = c.channelsLast(x); err != nil {
		return err
	}

	// Fuse the following nodes: a normalisation into weights and bias, an addition and an activation into the end of
	// the product.
	weights, bias, out, err := c.foldNorm(n, w)
	if err != nil {
		return err
	}

	out, residual, act := c.fuseTail(out, dims, true)
	if residual, err = c.channelsLast(residual); err != nil {
		return err
	}

	y, err := c.makeResult(out, Float32, dims)
	if err != nil {
		return err
	}

	y.last = x.last

	h, wd := planeOf(x.Dims[2:])
	p := kernels.Conv{X: c.refOf(x), W: weights, Bias: bias, Residual: c.refOf(residual), Y: c.refOf(y),
		N: int32(x.Dims[0]), C: int32(x.Dims[1]), H: int32(h), Wd: int32(wd), K: int32(k), OH: int32(g.out[0]), OW: int32(g.out[1]),
		R: int32(g.size[0]), S: int32(g.size[1]), StrideH: int32(g.stride[0]), StrideW: int32(g.stride[1]),
		PadH: int32(g.top[0]), PadW: int32(g.top[1]), DilH: int32(g.dil[0]), DilW: int32(g.dil[1]), Groups: int32(groups),
		Act: act.kind, A: act.a, B: act.b, NHWC: lastFlag(y)}

	// One multiplication and one addition per weight and output.
	c.layer.FLOP += 2 * int64(y.elements()) * int64(countElements(w.Dims[1:]))

	c.emitConv(&p, g.isPointwise())
	return nil
}

// emitConv emits a convolution by the kernel that suits its shape.
func (c *compiler) emitConv(p *kernels.Conv, pointwise bool) {
	// In the plain order a pointwise convolution is a matrix product.
	if pointwise && p.Groups == 1 && p.NHWC == 0 {
		c.emitPointwise(p)
		return
	}

	// In a depthwise convolution each thread computes one element, because there is no depth to divide.
	if p.Groups == p.C && p.Groups == p.K {
		grid, block := kernels.Elementwise(int64(p.N) * int64(p.K) * int64(p.OH) * int64(p.OW))
		emitLaunch(c, "conv_depthwise", 5, grid, block, p)
		return
	}

	grid, block := p.Launch()
	emitLaunch(c, "conv", 5, grid, block, p)
}

// lastFlag is 1 for a tensor with channels last.
func lastFlag(t *tensor) int32 {
	if t.last {
		return 1
	}
	return 0
}

// emitPointwise emits a pointwise convolution as a matrix product without the arithmetic of windows: for each image,
// the weights [K, C] times the image [C, H·W].
func (c *compiler) emitPointwise(v *kernels.Conv) {
	pixels := v.H * v.Wd
	p := kernels.Gemm{PA: v.W, PB: v.X, Bias: v.Bias, Residual: v.Residual, PC: v.Y, Bi1: int64(v.C) * int64(pixels),
		AM: v.C, AK: 1, BK: pixels, BN: 1, BiasM: 1, M: v.K, N: pixels, K: v.C, B1: v.N, B2: 1,
		Act: v.Act, Alpha: 1, Beta: 1, A: v.A, B: v.B}
	grid, block := p.Launch()
	emitLaunch(c, "gemm", 5, grid, block, &p)
}

// foldNorm returns the weights and the bias of a convolution. It folds a batch normalisation into them if that is the
// only user.
func (c *compiler) foldNorm(n *Node, w *tensor) (weights, bias uint64, out string, err error) {
	b, out := c.plainInput(2), n.Outputs[0]

	k := w.Dims[0]
	if b != nil && b.elements() != k {
		return 0, 0, "", fmt.Errorf("bias %v for %d channels", b.Dims, k)
	}

	// Without a normalisation the weights are unchanged, except that half precision needs them with channels last.
	norm := c.soleUser(out)
	if norm == nil || norm.Op != "BatchNormalization" || !w.isConstant() || b != nil && !b.isConstant() {
		if c.precision == FP32 {
			return c.refOf(w), c.refOf(b), out, nil
		}
		if !w.isConstant() {
			return 0, 0, "", fmt.Errorf("weights that are not constants in %v: %w", c.precision, ErrUnsupported)
		}
		return c.addDerived("images", w.Dims, func() []float32 { return orderFilters(floatsOf(w.data), w.Dims) }, w), c.refOf(b), out, nil
	}

	scale, shift, err := c.normalScale(norm)
	if err != nil {
		return 0, 0, "", err
	}

	if len(scale) != k {
		return 0, 0, "", fmt.Errorf("normalisation of %d channels for %d", len(scale), k)
	}

	from := []*tensor{w, b}
	for _, in := range norm.Inputs[1:] {
		from = append(from, c.values[in])
	}

	// A normalisation is a factor and a shift per channel. The factor goes into the weights and the shift into the
	// bias.
	weights = c.addDerived("normal", w.Dims, func() []float32 {
		fw := slices.Clone(floatsOf(w.data))
		each := len(fw) / k
		for i := range fw {
			fw[i] *= scale[i/each]
		}
		if c.precision != FP32 {
			return orderFilters(fw, w.Dims)
		}
		return fw
	}, from...)

	bias = c.addDerived("shift", []int{k}, func() []float32 {
		if b != nil {
			for i, v := range floatsOf(b.data) {
				shift[i] += v * scale[i]
			}
		}
		return shift
	}, from...)
	return weights, bias, c.fuseUser(out), nil
}

// orderFilters reorders weights [K,C,R,S] to [K,R,S,C].
func orderFilters(w []float32, dims []int) []float32 {
	out, c, window := make([]float32, len(w)), dims[1], countElements(dims[2:])
	for k := range dims[0] {
		for i := range c {
			for j := range window {
				out[(k*window+j)*c+i] = w[(k*c+i)*window+j]
			}
		}
	}
	return out
}
