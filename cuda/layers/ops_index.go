package layers

import (
	"fmt"
	"math"
	"slices"

	"downbeat.dev/cuda/kernels"
)

// lowerSlice takes its bounds from inputs; before operator set 10, from attributes.
func lowerSlice(c *compiler, n *Node) error {
	x := c.plainInput(0)

	var list [4][]int // starts, ends, axes, steps
	for i, name := range []string{"starts", "ends", "axes", "steps"} {
		var err error
		if list[i], err = c.intsAttr(name, i+1); err != nil {
			return err
		}
	}

	starts, ends, axes, steps := list[0], list[1], list[2], list[3]

	dims, xs, off := slices.Clone(x.Dims), denseStrides(x.Dims), 0

	for i, start := range starts {
		at, step := i, 1
		if axes != nil && i < len(axes) {
			at = axes[i]
		}
		if i < len(steps) {
			step = steps[i]
		}

		// The smallest integer has no negative, which sliceSpan needs.
		a, err := axisIndex(at, len(dims))
		if err != nil || i >= len(ends) || step == 0 || step == math.MinInt {
			return fmt.Errorf("starts %v, ends %v, axes %v, steps %v of %v", starts, ends, axes, steps, x.Dims)
		}

		from, count := sliceSpan(start, ends[i], step, x.Dims[a])
		off += from * xs[a]
		xs[a] *= step
		dims[a] = count
	}

	y, err := c.makeResult(n.Outputs[0], x.Type, dims)
	if err != nil {
		return err
	}
	return c.copyTo(x, y, dims, xs, denseStrides(dims), off, 0)
}

// sliceSpan returns where a slice of n elements begins and how many it takes, by NumPy's rules.
func sliceSpan(start, end, step, n int) (from, count int) {
	clamp := func(v, low, high int) int {
		if v < 0 {
			v = max(v, math.MinInt+n) + n
		}
		return min(max(v, low), high)
	}

	if step > 0 {
		from, end = clamp(start, 0, n), clamp(end, 0, n)
		return from, max(0, (end-from+step-1)/step)
	}

	// Backwards, a slice begins inside and may end before the first element.
	from, end = clamp(start, 0, n-1), clamp(end, -1, n-1)
	return from, max(0, (from-end-step-1)/-step)
}

// lowerPad lowers Pad with a constant: it fills the output, then copies the input into it.
func lowerPad(c *compiler, n *Node) error {
	x := c.plainInput(0)
	pads, err := c.intsAttr("pads", 1)
	if err != nil {
		return err
	}

	mode := n.Attrs["mode"].Text
	if len(pads) != 2*len(x.Dims) || x.Type != Float32 || mode != "" && mode != "constant" || c.plainInput(3) != nil {
		return fmt.Errorf("mode %q, pads %v of %v of %v: %w", mode, pads, x.Dims, x.Type, ErrUnsupported)
	}

	value := c.floatAttr("value", 0)
	if v := c.plainInput(2); v != nil {
		if !v.isConstant() || v.Type != Float32 || v.elements() != 1 {
			return fmt.Errorf("value is not a constant: %w", ErrUnsupported)
		}
		value = floatsOf(v.data)[0]
	}

	dims, off := slices.Clone(x.Dims), 0
	for i := range dims {
		before, after := pads[i], pads[len(dims)+i]
		if before < 0 || after < 0 || before > elementsMax || after > elementsMax {
			return fmt.Errorf("pads %v: %w", pads, ErrUnsupported)
		}
		dims[i] += before + after
	}

	y, err := c.makeResult(n.Outputs[0], Float32, dims)
	if err != nil {
		return err
	}

	// Fill the result with the value, then copy the input into its middle.
	ys := denseStrides(dims)
	for i := range dims {
		off += pads[i] * ys[i]
	}
	if err := c.fillTensor(y, value); err != nil {
		return err
	}
	return c.copyTo(x, y, x.Dims, denseStrides(x.Dims), ys, 0, off)
}

// fillTensor emits the launch that sets every element of a tensor to a value.
func (c *compiler) fillTensor(y *tensor, value float32) error {
	constant := &tensor{Value: Value{Type: Float32, Dims: []int{1}}, data: bytesOf([]float32{value}), buffer: -1}
	return c.copyTo(constant, y, y.Dims, make([]int, len(y.Dims)), denseStrides(y.Dims), 0, 0)
}

func lowerGather(c *compiler, n *Node) error {
	x, index := c.plainInput(0), c.plainInput(1)
	a, err := axisIndex(c.intAttr("axis", 0), len(x.Dims))
	if err != nil {
		return err
	}

	if index.Type != Int64 && index.Type != Int32 {
		return fmt.Errorf("indices are %v", index.Type)
	}

	// Check constant indices here; the kernel checks those of requests.
	if index.isConstant() && index.Type == Int64 {
		for _, v := range intsOf(index.data) {
			if v < -int64(x.Dims[a]) || v >= int64(x.Dims[a]) {
				return fmt.Errorf("index %d of %d", v, x.Dims[a])
			}
		}
	}

	dims := append(append(slices.Clone(x.Dims[:a]), index.Dims...), x.Dims[a+1:]...)
	y, err := c.makeResult(n.Outputs[0], x.Type, dims)
	if err != nil {
		return err
	}

	from := c.refOf(x) // determines how a constant is stored
	p := kernels.Gather{X: from, Index: c.refOf(index), Y: c.refOf(y), Outer: int32(countElements(x.Dims[:a])), Len: int32(x.Dims[a]),
		Inner: int32(countElements(x.Dims[a+1:])), Picks: int32(index.elements()), Size: int32(x.stored.Size()), IndexSize: int32(index.Type.Size())}
	grid, block := kernels.Elementwise(int64(y.elements()))
	emitLaunch(c, "gather", 3, grid, block, &p)
	return nil
}
