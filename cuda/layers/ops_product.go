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

// lowerGemm lowers ONNX's Gemm: Y = alpha·A·B + beta·C, with A and B possibly transposed.
func lowerGemm(c *compiler, n *Node) error {
	if err := c.requireFloat(0, 1, 2); err != nil {
		return err
	}

	a, b, bias := c.plainInput(0), c.plainInput(1), c.plainInput(2)
	if len(a.Dims) != 2 || len(b.Dims) != 2 {
		return fmt.Errorf("shapes %v and %v: two dimensions each", a.Dims, b.Dims)
	}

	// A transposed operand is read with its strides swapped.
	p := kernels.Gemm{B1: 1, B2: 1, Alpha: c.floatAttr("alpha", 1), Beta: c.floatAttr("beta", 1)}
	m, k := a.Dims[0], a.Dims[1]
	p.AM, p.AK = int32(k), 1
	if c.intAttr("transA", 0) != 0 {
		m, k = k, m
		p.AM, p.AK = 1, int32(m)
	}

	kb, nn := b.Dims[0], b.Dims[1]
	p.BK, p.BN = int32(nn), 1
	if c.intAttr("transB", 0) != 0 {
		kb, nn = nn, kb
		p.BK, p.BN = 1, int32(kb)
	}

	if k != kb {
		return fmt.Errorf("shapes %v and %v do not multiply", a.Dims, b.Dims)
	}
	p.M, p.N, p.K = int32(m), int32(nn), int32(k)

	if bias != nil {
		s := repeatedStrides(bias.Dims, []int{m, nn})
		if got, err := broadcastShape(bias.Dims, []int{m, nn}); err != nil || !slices.Equal(got, []int{m, nn}) {
			return fmt.Errorf("bias %v for [%d %d]", bias.Dims, m, nn)
		}
		p.BiasM, p.BiasN = int32(s[0]), int32(s[1])
	}
	return c.emitProduct(&p, a, b, bias, n.Outputs[0], []int{m, nn})
}

// emitProduct emits a matrix product and fuses the following nodes.
func (c *compiler) emitProduct(p *kernels.Gemm, a, b, bias *tensor, out string, dims []int) error {
	out, residual, act := c.fuseTail(out, dims, true)

	// A product's result is in the plain order, so the residual must be too.
	residual, err := c.plainOrder(residual)
	if err != nil {
		return err
	}

	y, err := c.makeResult(out, Float32, dims)
	if err != nil {
		return err
	}

	p.PA, p.PB, p.Bias, p.Residual, p.PC = c.refOf(a), c.matrixRef(p, b), c.refOf(bias), c.refOf(residual), c.refOf(y)
	p.Act, p.A, p.B = act.kind, act.a, act.b
	c.layer.FLOP += 2 * int64(y.elements()) * int64(p.K)

	grid, block := p.Launch()
	emitLaunch(c, "gemm", 5, grid, block, p)
	return nil
}

// matrixRef returns the ref of a product's right side. In half precision a constant is stored by columns, which the
// kernels on tensor cores read.
func (c *compiler) matrixRef(p *kernels.Gemm, b *tensor) uint64 {
	if c.precision == FP32 || !b.isConstant() || len(b.Dims) != 2 || p.BN != 1 || p.BK != p.N {
		return c.refOf(b)
	}

	p.BK, p.BN = 1, p.K
	return c.addDerived("columns", b.Dims, func() []float32 { return orderFilters(floatsOf(b.data), []int{1, b.Dims[0], b.Dims[1]}) }, b)
}

// matMul follows NumPy: leading dimensions are batches and broadcast.
func matMul(c *compiler, n *Node) error {
	if err := c.requireFloat(0, 1); err != nil {
		return err
	}

	a, b := c.plainInput(0), c.plainInput(1)
	if len(a.Dims) < 2 || len(b.Dims) < 2 {
		return fmt.Errorf("shapes %v and %v: at least two dimensions each: %w", a.Dims, b.Dims, ErrUnsupported)
	}

	m, k := a.Dims[len(a.Dims)-2], a.Dims[len(a.Dims)-1]
	kb, nn := b.Dims[len(b.Dims)-2], b.Dims[len(b.Dims)-1]
	if k != kb {
		return fmt.Errorf("shapes %v and %v do not multiply", a.Dims, b.Dims)
	}

	// Leading dimensions are batches, and broadcast if one side has fewer.
	lead, err := broadcastShape(a.Dims[:len(a.Dims)-2], b.Dims[:len(b.Dims)-2])
	if err != nil {
		return err
	}

	dims := append(slices.Clone(lead), m, nn)
	p := kernels.Gemm{M: int32(m), N: int32(nn), K: int32(k), B1: 1, B2: 1, AM: int32(k), AK: 1, BK: int32(nn), BN: 1, Alpha: 1, Beta: 1}
	if len(b.Dims) == 2 { // one matrix for all batches, whose rows become one product's rows
		p.M = int32(countElements(a.Dims[:len(a.Dims)-1]))
	} else if err := fitBatches(&p, lead, a, b, m*k, k*nn); err != nil {
		return err
	}

	bias, out := c.matMulBias(n.Outputs[0], nn)
	if bias != nil {
		p.BiasN = 1
	}
	return c.emitProduct(&p, a, b, bias, out, dims)
}

// matMulBias fuses an addition of a constant vector if that is the only user.
func (c *compiler) matMulBias(out string, nn int) (*tensor, string) {
	n := c.soleUser(out)
	if n == nil || n.Op != "Add" {
		return nil, out
	}

	other := n.Inputs[0]
	if other == out {
		other = n.Inputs[1]
	}

	// Only a vector over the columns can be the bias of a product.
	t := c.values[other]
	if t == nil || !t.isConstant() || t.Type != Float32 || len(t.Dims) == 0 || t.Dims[len(t.Dims)-1] != nn || t.elements() != nn {
		return nil, out
	}
	return t, c.fuseUser(out)
}
