package layers

import (
	"fmt"
	"slices"

	"downbeat.dev/cuda/kernels"
)

// requireFloat returns an error if one of the inputs has another type.
func (c *compiler) requireFloat(inputs ...int) error {
	for _, i := range inputs {
		if t := c.anyInput(i); t != nil && t.Type != Float32 {
			return fmt.Errorf("input %d is %v: %w", i, t.Type, ErrUnsupported)
		}
	}
	return nil
}

func lowerUnary(c *compiler, n *Node) error {
	if err := c.requireFloat(0); err != nil {
		return err
	}

	act, ok := activations[n.Op](c, n)
	if !ok {
		return fmt.Errorf("bounds are not constants: %w", ErrUnsupported)
	}

	x, out := c.anyInput(0), n.Outputs[0]
	if m := c.soleUser(out); n.Op == "Sigmoid" && m != nil && m.Op == "Mul" { // x·sigmoid(x) is Swish
		if u := c.users[x.Name]; slices.Contains(m.Inputs, x.Name) && len(u) > 0 {
			act, out = activation{kind: kernels.Swish}, c.fuseUser(out)
		}
	}
	return c.emitElementwise(x, out, act)
}

func (c *compiler) emitElementwise(x *tensor, out string, act activation) error {
	y, err := c.makeResult(out, Float32, x.Dims)
	if err != nil {
		return err
	}

	// Elements are independent: the result keeps the order of its input.
	y.last = x.last
	p := kernels.Unary{X: c.refOf(x), Y: c.refOf(y), Count: int64(x.elements()), Act: act.kind, A: act.a, B: act.b}
	grid, block := kernels.Elementwise(p.Count)
	emitLaunch(c, "unary", 2, grid, block, &p)
	return nil
}

// lowerBinary lowers an operator of two inputs, or of any number by chaining.
func lowerBinary(op int32) func(*compiler, *Node) error {
	return func(c *compiler, n *Node) error {
		x := c.anyInput(0)

		// A Sum or a Max of one input is that input.
		if len(n.Inputs) == 1 {
			x = c.plainInput(0)
			return c.aliasResult(n.Outputs[0], x, x.Dims)
		}

		// More than two operands are combined pairwise, and only the last pair may fuse an activation.
		for i := 1; i < len(n.Inputs); i++ {
			y := c.anyInput(i)
			if y == nil || y.Type != x.Type || x.Type != Float32 && (x.Type != Int64 || op == kernels.Pow) {
				if op == kernels.Pow && y != nil && y.isConstant() && x.Type == Float32 {
					return fmt.Errorf("exponent is %v: %w", y.Type, ErrUnsupported)
				}
				return fmt.Errorf("input %d and the one before are not both float32 or int64: %w", i, ErrUnsupported)
			}

			last := i == len(n.Inputs)-1
			name := n.Outputs[0]
			if !last {
				name = fmt.Sprintf("%s/%d", name, i)
			}

			var err error
			if x, err = c.emitBinary(op, x, y, name, last); err != nil {
				return err
			}
		}
		return nil
	}
}

func (c *compiler) emitBinary(op int32, x, y *tensor, name string, last bool) (*tensor, error) {
	dims, err := broadcastShape(x.Dims, y.Dims)
	if err != nil {
		return nil, err
	}

	// Only the last step of a chain computes the node's own value, which may fuse later nodes.
	act := activation{}
	if last && x.Type == Float32 {
		name, _, act = c.fuseTail(name, dims, false)
	}

	out, err := c.makeResult(name, x.Type, dims)
	if err != nil {
		return nil, err
	}

	list := []*tensor{x, y}
	imaged, order, views, err := c.shapeTogether(dims, list)
	if err != nil {
		return nil, err
	}

	x, y, out.last = list[0], list[1], imaged
	d, s, err := joinDims(order, views[0], views[1], denseStrides(order))
	if err != nil {
		return nil, err
	}

	// A square is far cheaper than a power, and exported layer normalisations contain many squares.
	if op == kernels.Pow && y.isConstant() && y.elements() == 1 && floatsOf(y.data)[0] == 2 && act.kind == kernels.None {
		p := kernels.Unary{X: c.refOf(x), Y: c.refOf(out), Count: int64(x.elements()), Act: kernels.Square}
		if slices.Equal(dims, x.Dims) {
			grid, block := kernels.Elementwise(p.Count)
			emitLaunch(c, "unary", 2, grid, block, &p)
			return out, nil
		}
	}

	kernel := "binary"
	if x.Type == Int64 {
		kernel = "binary_int64"
	}

	p := kernels.Binary{P: c.refOf(x), Q: c.refOf(y), Y: c.refOf(out), Count: int64(out.elements()), Dims: d, PS: s[0], QS: s[1],
		Op: op, Act: act.kind, A: act.a, B: act.b}
	grid, block := kernels.Elementwise(p.Count)
	emitLaunch(c, kernel, 3, grid, block, &p)
	return out, nil
}

func lowerWhere(c *compiler, n *Node) error {
	cond, x, y := c.plainInput(0), c.plainInput(1), c.plainInput(2)
	if cond.Type != Bool || x.Type != Float32 || y.Type != Float32 {
		return fmt.Errorf("types %v, %v, %v: %w", cond.Type, x.Type, y.Type, ErrUnsupported)
	}

	dims, err := broadcastShape(x.Dims, y.Dims)
	if err == nil {
		dims, err = broadcastShape(dims, cond.Dims)
	}

	if err != nil {
		return err
	}

	out, err := c.makeResult(n.Outputs[0], Float32, dims)
	if err != nil {
		return err
	}

	// All four are traversed as one shape, in which a smaller one repeats with strides of 0.
	d, s, err := joinDims(dims, repeatedStrides(cond.Dims, dims), repeatedStrides(x.Dims, dims), repeatedStrides(y.Dims, dims), denseStrides(dims))
	if err != nil {
		return err
	}

	p := kernels.Where{Cond: c.refOf(cond), P: c.refOf(x), Q: c.refOf(y), Y: c.refOf(out), Count: int64(out.elements()), Dims: d, CS: s[0], PS: s[1], QS: s[2]}
	grid, block := kernels.Elementwise(p.Count)
	emitLaunch(c, "where", 4, grid, block, &p)
	return nil
}
