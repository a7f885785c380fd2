package layers

import (
	"fmt"
	"math"
	"slices"

	"downbeat.dev/cuda/kernels"
)

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

// castTypes maps ONNX's numbers to element types.
var castTypes = map[int]DataType{1: Float32, 2: Uint8, 6: Int32, 7: Int64, 9: Bool}

var kernelTypes = map[DataType]int32{Float32: kernels.Float32, Int32: kernels.Int32, Int64: kernels.Int64, Bool: kernels.Bool, Uint8: kernels.Uint8,
	float16: kernels.Float16, bfloat16: kernels.BFloat16}

func lowerCast(c *compiler, n *Node) error {
	x := c.plainInput(0)
	to, ok := castTypes[c.intAttr("to", 0)]
	if !ok {
		return fmt.Errorf("to type %d: %w", c.intAttr("to", 0), ErrUnsupported)
	}
	if to == x.Type {
		return c.aliasResult(n.Outputs[0], x, x.Dims)
	}

	y, err := c.makeResult(n.Outputs[0], to, x.Dims)
	if err != nil {
		return err
	}
	return c.convertType(x, y)
}

// setKnown makes the value of an output a constant.
func (c *compiler) setKnown(name string, typ DataType, dims []int, data []byte) error {
	t, err := c.newTensor(name, typ, dims)
	if err == nil {
		t.data, t.stored = data, typ
	}
	return err
}

func lowerShape(c *compiler, n *Node) error {
	x := c.plainInput(0)
	from, end := c.intAttr("start", 0), c.intAttr("end", len(x.Dims))
	first, count := sliceSpan(from, end, 1, len(x.Dims))

	var dims []int64
	for _, d := range x.Dims[first : first+count] {
		dims = append(dims, int64(d))
	}
	return c.setKnown(n.Outputs[0], Int64, []int{len(dims)}, bytesOf(dims))
}

func lowerConstant(c *compiler, n *Node) error {
	out := n.Outputs[0]
	if a, ok := n.Attrs["value"]; ok && a.Tensor != nil {
		if err := a.Tensor.checkData(); err != nil {
			return err
		}
		return c.setKnown(out, a.Tensor.Type, a.Tensor.Dims, a.Tensor.Data)
	}

	// Since opset 12 the value may be an attribute instead of a tensor.
	if a, ok := n.Attrs["value_float"]; ok {
		return c.setKnown(out, Float32, nil, bytesOf([]float32{a.Float}))
	}
	if a, ok := n.Attrs["value_int"]; ok {
		return c.setKnown(out, Int64, nil, bytesOf([]int64{a.Int}))
	}
	if a, ok := n.Attrs["value_floats"]; ok {
		return c.setKnown(out, Float32, []int{len(a.Floats)}, bytesOf(a.Floats))
	}
	if a, ok := n.Attrs["value_ints"]; ok {
		return c.setKnown(out, Int64, []int{len(a.Ints)}, bytesOf(a.Ints))
	}
	return fmt.Errorf("no value: %w", ErrUnsupported)
}

func constantOfShape(c *compiler, n *Node) error {
	dims, err := c.constantInts(0, "shape")
	if err != nil {
		return err
	}

	typ, one := Float32, bytesOf([]float32{0})
	if a := n.Attrs["value"]; a.Tensor != nil {
		if err := a.Tensor.checkData(); err != nil {
			return err
		}
		typ, one = a.Tensor.Type, a.Tensor.Data
	}

	count, err := Elements(dims)
	if err != nil {
		return err
	}

	// A file of a few bytes must not take all memory.
	if len(one) != typ.Size() || count*typ.Size() > foldBytesMax {
		return fmt.Errorf("%d elements of %v: %w", count, typ, ErrUnsupported)
	}
	return c.setKnown(n.Outputs[0], typ, dims, slices.Repeat(one, count))
}

// lowerRange lowers ONNX's Range of integers.
func lowerRange(c *compiler, n *Node) error {
	var v [3]int
	for i := range v {
		list, err := c.constantInts(i, "bound")
		if err != nil {
			return err
		}
		if len(list) != 1 {
			return fmt.Errorf("bound %d is not one number", i)
		}
		v[i] = list[0]
	}

	// A step of 0 gives no elements. The bound is there because a file of a few bytes must not take all memory.
	var out []int64
	for at := v[0]; v[2] > 0 && at < v[1] || v[2] < 0 && at > v[1]; at += v[2] {
		if out = append(out, int64(at)); len(out) > foldBytesMax/8 {
			return fmt.Errorf("range from %d to %d by %d: %w", v[0], v[1], v[2], ErrUnsupported)
		}
	}
	return c.setKnown(n.Outputs[0], Int64, []int{len(out)}, bytesOf(out))
}
