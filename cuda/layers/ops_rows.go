package layers

import (
	"fmt"
	"math"
	"slices"

	"downbeat.dev/cuda/kernels"
)

// rowsAlong returns the struct of a kernel that works along dimensions a to b−1 of x.
func rowsAlong(c *compiler, x, y *tensor, a, b int, op int32) kernels.Rows {
	return kernels.Rows{X: c.refOf(x), Y: c.refOf(y), Outer: int32(countElements(x.Dims[:a])), Len: int32(countElements(x.Dims[a:b])),
		Inner: int32(countElements(x.Dims[b:])), Op: op}
}

func (c *compiler) emitRows(kernel string, p kernels.Rows) {
	grid, block := kernels.PerRow(int64(p.Outer) * int64(p.Inner))
	if kernel == "reduce" {
		grid, block = p.Launch()
	}
	emitLaunch(c, kernel, 2, grid, block, &p)
}

// lowerSoftmax works along one axis. Before operator set 13 it works along all dimensions from the axis on.
func lowerSoftmax(log int32) func(*compiler, *Node) error {
	return func(c *compiler, n *Node) error {
		if err := c.requireFloat(0); err != nil {
			return err
		}

		// Before operator set 13 the axis split the dimensions in two, and all from the axis on were one row.
		x, otherwise := c.plainInput(0), -1
		if c.g.Opset < 13 {
			otherwise = 1
		}

		a, err := axisIndex(c.intAttr("axis", otherwise), len(x.Dims))
		if err != nil {
			return err
		}

		b := a + 1
		if c.g.Opset < 13 {
			b = len(x.Dims)
		}

		y, err := c.makeResult(n.Outputs[0], Float32, x.Dims)
		if err != nil {
			return err
		}

		c.emitRows("softmax", rowsAlong(c, x, y, a, b, log))
		return nil
	}
}

// lowerReduce reduces adjacent axes. A transposition makes other axes adjacent.
func lowerReduce(op int32) func(*compiler, *Node) error {
	return func(c *compiler, n *Node) error {
		if err := c.requireFloat(0); err != nil {
			return err
		}

		x := c.plainInput(0)
		axes, err := c.intsAttr("axes", 1)
		if err != nil {
			return err
		}

		// No axes means all of them, unless the node says that it means none.
		if len(axes) == 0 {
			if c.intAttr("noop_with_empty_axes", 0) != 0 {
				return c.aliasResult(n.Outputs[0], x, x.Dims)
			}
			for i := range x.Dims {
				axes = append(axes, i)
			}
		}

		return c.emitReduce(x, n.Outputs[0], "reduce", Float32, op, axes, c.intAttr("keepdims", 1) != 0)
	}
}

func (c *compiler) emitReduce(x *tensor, out, kernel string, typ DataType, op int32, axes []int, keep bool) error {
	gone := make([]bool, len(x.Dims))
	for _, a := range axes {
		i, err := axisIndex(a, len(x.Dims))
		if err != nil {
			return err
		}
		gone[i] = true
	}

	var dims, kept, dropped []int
	for i, d := range x.Dims {
		switch {
		case !gone[i]:
			dims, kept = append(dims, d), append(kept, i)
		case keep:
			dims, dropped = append(dims, 1), append(dropped, i)
		default:
			dropped = append(dropped, i)
		}
	}

	y, err := c.makeResult(out, typ, append([]int{}, dims...))
	if err != nil {
		return err
	}

	// The kernel reduces one run of dimensions.
	a, b := len(x.Dims), len(x.Dims)
	if len(dropped) > 0 {
		a, b = dropped[0], dropped[len(dropped)-1]+1
	}
	if b-a != len(dropped) { // not adjacent: the dropped ones go last
		if x, err = c.permuteTensor(x, out+"/side", append(kept, dropped...)); err != nil {
			return err
		}
		a, b = len(kept), len(x.Dims)
	}

	c.emitRows(kernel, rowsAlong(c, x, y, a, b, op))
	return nil
}

func (c *compiler) permuteTensor(x *tensor, name string, perm []int) (*tensor, error) {
	from := denseStrides(x.Dims)
	dims, xs := make([]int, len(perm)), make([]int, len(perm))
	for i, p := range perm {
		dims[i], xs[i] = x.Dims[p], from[p]
	}

	y, err := c.makeResult(name, x.Type, dims)
	if err != nil {
		return nil, err
	}
	return y, c.copyTo(x, y, dims, xs, denseStrides(dims), 0, 0)
}

func argMax(c *compiler, n *Node) error {
	if err := c.requireFloat(0); err != nil {
		return err
	}
	if c.intAttr("select_last_index", 0) != 0 {
		return fmt.Errorf("select_last_index: %w", ErrUnsupported)
	}
	return c.emitReduce(c.plainInput(0), n.Outputs[0], "argmax", Int64, 0, []int{c.intAttr("axis", 0)}, c.intAttr("keepdims", 1) != 0)
}

func globalPool(op int32) func(*compiler, *Node) error {
	return func(c *compiler, n *Node) error {
		if err := c.requireFloat(0); err != nil {
			return err
		}

		x := c.anyInput(0)
		if len(x.Dims) < 3 {
			return fmt.Errorf("shape %v has no image", x.Dims)
		}
		if x.last { // the image lies between the batch and the channels
			dims := append([]int{x.Dims[0], x.Dims[1]}, slices.Repeat([]int{1}, len(x.Dims)-2)...)
			y, err := c.makeResult(n.Outputs[0], Float32, dims)
			if err == nil {
				c.emitRows("reduce", kernels.Rows{X: c.refOf(x), Y: c.refOf(y), Outer: int32(dims[0]), Len: int32(countElements(x.Dims[2:])), Inner: int32(dims[1]), Op: op})
			}
			return err
		}

		axes := []int{}
		for i := 2; i < len(x.Dims); i++ {
			axes = append(axes, i)
		}
		return c.emitReduce(x, n.Outputs[0], "reduce", Float32, op, axes, true)
	}
}

func layerNorm(c *compiler, n *Node) error {
	if err := c.requireFloat(0, 1, 2); err != nil {
		return err
	}

	x, gamma, beta := c.plainInput(0), c.plainInput(1), c.plainInput(2)
	a, err := axisIndex(c.intAttr("axis", -1), len(x.Dims))
	if err != nil {
		return err
	}

	size := countElements(x.Dims[a:])
	if gamma.elements() != size || beta != nil && beta.elements() != size {
		return fmt.Errorf("scale %v for %v from axis %d", gamma.Dims, x.Dims, a)
	}

	// The kernel computes neither the mean nor the deviation as an output.
	if len(n.Outputs) > 1 {
		return fmt.Errorf("mean and deviation as outputs: %w", ErrUnsupported)
	}

	y, err := c.makeResult(n.Outputs[0], Float32, x.Dims)
	if err != nil {
		return err
	}

	p := kernels.LayerNorm{X: c.refOf(x), Gamma: c.refOf(gamma), Beta: c.refOf(beta), Y: c.refOf(y),
		Rows: int32(countElements(x.Dims[:a])), Len: int32(size), Epsilon: c.floatAttr("epsilon", 1e-5)}
	grid, block := kernels.PerRow(int64(p.Rows))
	emitLaunch(c, "layernorm", 5, grid, block, &p)
	return nil
}

// batchNorm is a scale and a shift per channel, because the statistics are constants. Convolutions fold it (see
// foldNorm); this function lowers the others.
func batchNorm(c *compiler, n *Node) error {
	x := c.anyInput(0)
	scale, shift, err := c.normalScale(n)
	if err != nil {
		return err
	}
	if len(x.Dims) < 2 || x.Dims[1] != len(scale) || x.Type != Float32 {
		return fmt.Errorf("%d channels for %v of %v", len(scale), x.Dims, x.Type)
	}

	out, _, act := c.fuseTail(n.Outputs[0], x.Dims, false)
	y, err := c.makeResult(out, Float32, x.Dims)
	if err != nil {
		return err
	}
	y.last = x.last

	// With channels last, adjacent elements belong to adjacent channels.
	inner := countElements(x.Dims[2:])
	if x.last {
		inner = 1
	}

	p := kernels.Affine{X: c.refOf(x), Scale: c.paramFloats(scale), Shift: c.paramFloats(shift), Y: c.refOf(y), Count: int64(x.elements()),
		Channels: int32(len(scale)), Inner: int32(inner), Act: act.kind, A: act.a, B: act.b}
	grid, block := kernels.Elementwise(p.Count)
	emitLaunch(c, "affine", 4, grid, block, &p)
	return nil
}

// normalScale returns the scale and shift of a BatchNormalization node.
func (c *compiler) normalScale(n *Node) (scale, shift []float32, err error) {
	var in [4][]float32
	for i := range in {
		t := c.values[n.Inputs[i+1]]
		if t == nil || !t.isConstant() || t.Type != Float32 {
			return nil, nil, fmt.Errorf("input %d is not a float32 constant: %w", i+1, ErrUnsupported)
		}
		if in[i] = floatsOf(t.data); len(in[i]) != len(in[0]) {
			return nil, nil, fmt.Errorf("input %d has %d elements, scale %d", i+1, len(in[i]), len(in[0]))
		}
	}

	if a, ok := n.Attrs["training_mode"]; ok && a.Int != 0 {
		return nil, nil, fmt.Errorf("training mode: %w", ErrUnsupported)
	}

	// ONNX's default is a float32, with its rounding.
	epsilon := float64(float32(1e-5))
	if e, ok := n.Attrs["epsilon"]; ok {
		epsilon = float64(e.Float)
	}

	// Write scale·(x − mean)/√(variance + ε) + shift as one factor and one shift.
	scale, shift = slices.Clone(in[0]), slices.Clone(in[1])
	for i := range scale {
		s := float64(in[0][i]) / math.Sqrt(float64(in[3][i])+epsilon)
		scale[i] = float32(s)
		shift[i] = float32(float64(in[1][i]) - float64(in[2][i])*s)
	}
	return scale, shift, nil
}
