package layers

import (
	"fmt"
	"slices"
)

func lowerView(c *compiler, n *Node) error {
	return c.aliasResult(n.Outputs[0], c.plainInput(0), c.plainInput(0).Dims)
}

func lowerReshape(c *compiler, n *Node) error {
	x := c.plainInput(0)
	want, err := c.intsAttr("shape", 1)
	if err != nil {
		return err
	}

	// 0 keeps the input's dimension, and one −1 stands for the remaining elements.
	dims, free := slices.Clone(want), -1
	for i, d := range dims {
		switch {
		case d == 0 && c.intAttr("allowzero", 0) == 0:
			if i >= len(x.Dims) {
				return fmt.Errorf("shape %v keeps dimension %d of %v", want, i, x.Dims)
			}
			dims[i] = x.Dims[i]
		case d == -1 && free < 0:
			free, dims[i] = i, 1
		case d < 0:
			return fmt.Errorf("shape %v", want)
		}
	}

	total, err := Elements(dims)
	if err != nil {
		return err
	}

	// A remainder is refused below, like any other wrong number of elements.
	if free >= 0 && total > 0 {
		dims[free] = x.elements() / total
		total *= dims[free]
	}

	if total != x.elements() {
		return fmt.Errorf("shape %v for the %d elements of %v", want, x.elements(), x.Dims)
	}
	return c.aliasResult(n.Outputs[0], x, dims)
}

func lowerFlatten(c *compiler, n *Node) error {
	x := c.plainInput(0)
	a := c.intAttr("axis", 1)
	if a < 0 {
		a += len(x.Dims)
	}
	if a < 0 || a > len(x.Dims) {
		return fmt.Errorf("axis %d of %v", a, x.Dims)
	}
	return c.aliasResult(n.Outputs[0], x, []int{countElements(x.Dims[:a]), countElements(x.Dims[a:])})
}

func lowerSqueeze(c *compiler, n *Node) error {
	x := c.plainInput(0)
	axes, err := c.intsAttr("axes", 1)
	if err != nil {
		return err
	}

	drop := make([]bool, len(x.Dims))
	for _, a := range axes {
		i, err := axisIndex(a, len(x.Dims))
		if err != nil {
			return err
		}
		if x.Dims[i] != 1 {
			return fmt.Errorf("dimension %d of %v is not 1", i, x.Dims)
		}
		drop[i] = true
	}

	// Without axes remove every dimension of 1.
	dims := []int{}
	for i, d := range x.Dims {
		if !drop[i] && !(axes == nil && d == 1) {
			dims = append(dims, d)
		}
	}
	return c.aliasResult(n.Outputs[0], x, dims)
}

func lowerUnsqueeze(c *compiler, n *Node) error {
	x := c.plainInput(0)
	axes, err := c.intsAttr("axes", 1)
	if err != nil {
		return err
	}

	rank := len(x.Dims) + len(axes)
	fresh := make([]bool, rank)
	for _, a := range axes {
		i, err := axisIndex(a, rank)
		if err != nil {
			return err
		}
		if fresh[i] {
			return fmt.Errorf("axes %v name one twice", axes)
		}
		fresh[i] = true
	}

	dims, rest := make([]int, rank), x.Dims
	for i := range dims {
		if dims[i] = 1; !fresh[i] {
			dims[i], rest = rest[0], rest[1:]
		}
	}
	return c.aliasResult(n.Outputs[0], x, dims)
}
