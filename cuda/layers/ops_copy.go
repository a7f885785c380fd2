package layers

import (
	"fmt"
	"slices"

	"downbeat.dev/cuda/kernels"
)

// copyTo emits a strided copy of a box of dims elements from x at xOff to y at yOff, in elements.
func (c *compiler) copyTo(x, y *tensor, dims, xs, ys []int, xOff, yOff int) error {
	d, s, err := joinDims(dims, xs, ys)
	if err != nil {
		return err
	}

	count := int64(1)
	for _, n := range dims {
		count *= int64(n)
	}

	from := c.refOf(x) // determines how a constant is stored
	size := x.stored.Size()
	p := kernels.Copy{X: from + uint64(xOff*size), Y: c.refOf(y) + uint64(yOff*size), Count: count, Dims: d, XS: s[0], YS: s[1], Size: int32(size)}
	grid, block := kernels.Elementwise(count)
	emitLaunch(c, "copy", 2, grid, block, &p)
	return nil
}

func lowerTranspose(c *compiler, n *Node) error {
	x := c.plainInput(0)
	rank := len(x.Dims)

	perm := make([]int, 0, rank)
	// Without a permutation reverse the dimensions.
	if a, ok := n.Attrs["perm"]; ok {
		for _, p := range a.Ints {
			perm = append(perm, int(p))
		}
	} else {
		for i := range rank {
			perm = append(perm, rank-1-i)
		}
	}

	seen := make([]bool, rank)
	dims, xs, from := make([]int, rank), make([]int, rank), denseStrides(x.Dims)
	if len(perm) != rank {
		return fmt.Errorf("permutation %v of %v", perm, x.Dims)
	}

	for i, p := range perm {
		if p < 0 || p >= rank || seen[p] {
			return fmt.Errorf("permutation %v of %v", perm, x.Dims)
		}
		seen[p] = true
		dims[i], xs[i] = x.Dims[p], from[p]
	}

	y, err := c.makeResult(n.Outputs[0], x.Type, dims)
	if err != nil {
		return err
	}
	return c.copyTo(x, y, dims, xs, denseStrides(dims), 0, 0)
}

func lowerExpand(c *compiler, n *Node) error {
	x := c.plainInput(0)
	want, err := c.constantInts(1, "shape")
	if err != nil {
		return err
	}

	dims, err := broadcastShape(x.Dims, want)
	if err != nil {
		return err
	}

	y, err := c.makeResult(n.Outputs[0], x.Type, dims)
	if err != nil {
		return err
	}
	return c.copyTo(x, y, dims, repeatedStrides(x.Dims, dims), denseStrides(dims), 0, 0)
}

func lowerConcat(c *compiler, n *Node) error {
	first, in := c.anyInput(0), c.anyInput

	// Channels stay last only if every input has them last.
	if first != nil && !(first.last && c.allImages(n)) {
		first, in = c.plainInput(0), c.plainInput
	}

	a, err := axisIndex(c.intAttr("axis", 0), len(first.Dims))
	if err != nil {
		return err
	}

	dims := slices.Clone(first.Dims)
	dims[a] = 0
	for i := range n.Inputs {
		x := in(i)
		if x == nil || x.Type != first.Type || len(x.Dims) != len(dims) {
			return fmt.Errorf("input %d does not fit the first", i)
		}
		for d := range dims {
			if d != a && x.Dims[d] != dims[d] {
				return fmt.Errorf("shapes %v and %v along axis %d", first.Dims, x.Dims, a)
			}
		}
		dims[a] += x.Dims[a]
	}

	y, err := c.makeResult(n.Outputs[0], first.Type, dims)
	if err != nil {
		return err
	}

	y.last = first.last

	ys, off := y.stridesOf(), 0
	for i := range n.Inputs {
		x := in(i)
		// An empty input would be a launch without elements.
		if x.elements() == 0 {
			continue
		}
		if err := c.copyTo(x, y, x.Dims, x.stridesOf(), ys, 0, off*ys[a]); err != nil {
			return err
		}
		off += x.Dims[a]
	}
	return nil
}

// allImages reports whether all inputs have channels last.
func (c *compiler) allImages(n *Node) bool {
	for i := range n.Inputs {
		if t := c.anyInput(i); t == nil || !t.last {
			return false
		}
	}
	return true
}

func lowerSplit(c *compiler, n *Node) error {
	x := c.plainInput(0)
	a, err := axisIndex(c.intAttr("axis", 0), len(x.Dims))
	if err != nil {
		return err
	}

	sizes, err := c.intsAttr("split", 1)
	if err != nil {
		return err
	}

	if sizes == nil { // equal parts; the last is smaller if they do not divide evenly
		part := (x.Dims[a] + len(n.Outputs) - 1) / len(n.Outputs)
		for left := x.Dims[a]; left > 0; left -= part {
			sizes = append(sizes, min(part, left))
		}
	}

	// Sizes from a file may have a wrong sum or number.
	total := 0
	for _, s := range sizes {
		total += s
	}

	if len(sizes) != len(n.Outputs) || total != x.Dims[a] {
		return fmt.Errorf("parts %v of %d for %d outputs", sizes, x.Dims[a], len(n.Outputs))
	}

	xs, off := denseStrides(x.Dims), 0
	for i, s := range sizes {
		dims := slices.Clone(x.Dims)
		dims[a] = s
		y, err := c.makeResult(n.Outputs[i], x.Type, dims)
		if err != nil {
			return err
		}
		if err := c.copyTo(x, y, dims, xs, denseStrides(dims), off*xs[a], 0); err != nil {
			return err
		}
		off += s
	}
	return nil
}
