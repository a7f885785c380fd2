package layers

import (
	"fmt"
	"slices"

	"downbeat.dev/cuda/kernels"
)

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

// fitBatches maps leading dimensions to the two batch dimensions of a product.
func fitBatches(p *kernels.Gemm, lead []int, a, b *tensor, aSize, bSize int) error {
	as, bs := repeatedStrides(a.Dims[:len(a.Dims)-2], lead), repeatedStrides(b.Dims[:len(b.Dims)-2], lead)
	d, s, err := joinDims(lead, as, bs)
	if err != nil {
		return err
	}

	// A product has two batch dimensions, so the others must have been joined.
	for i := range kernels.RankMax - 2 {
		if d[i] != 1 {
			return fmt.Errorf("batch dimensions %v: %w", lead, ErrUnsupported)
		}
	}

	// Leading strides count whole matrices; the product wants elements.
	last := kernels.RankMax - 1
	p.B1, p.B2 = d[last-1], d[last]
	p.A1, p.A2 = int64(s[0][last-1])*int64(aSize), int64(s[0][last])*int64(aSize)
	p.Bi1, p.Bi2 = int64(s[1][last-1])*int64(bSize), int64(s[1][last])*int64(bSize)
	return nil
}
