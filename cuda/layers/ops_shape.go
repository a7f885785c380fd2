package layers

import (
	"fmt"
	"slices"
)

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
