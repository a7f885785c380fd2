package layers

import (
	"slices"

	"downbeat.dev/cuda/kernels"
)

// In half precision images are stored with channels last, which suits matrix units. The Dims of a tensor are
// [N,C,H,W] in either case; its field last means that the bytes have the order [N,H,W,C]. Operators on images accept
// either order (anyInput). All others get tensors in the plain order (plainInput).

// channelsLast moves the second dimension, or its stride, to the end.
func channelsLast(v []int) []int {
	return append(append([]int{v[0]}, v[2:]...), v[1])
}

// stridesOf returns a tensor's strides, in the order of its Dims.
func (t *tensor) stridesOf() []int {
	if !t.last {
		return denseStrides(t.Dims)
	}
	s := denseStrides(channelsLast(t.Dims))
	n := len(s)
	return append([]int{s[0], s[n-1]}, s[1:n-1]...)
}

// spreadStrides returns a tensor's strides for the shape out: 0 where it repeats.
func (t *tensor) spreadStrides(out []int) []int {
	s, own := make([]int, len(out)), t.stridesOf()
	for i := range out {
		if j := i - len(out) + len(t.Dims); j >= 0 && t.Dims[j] != 1 {
			s[i] = own[j]
		}
	}
	return s
}

// plainOrder returns t in the plain order; it copies t at most once.
func (c *compiler) plainOrder(t *tensor) (*tensor, error) {
	if t == nil || !t.last {
		return t, nil
	}
	return c.turnedTensor(t, false)
}

// channelsLast returns t with channels last.
func (c *compiler) channelsLast(t *tensor) (*tensor, error) {
	if t == nil || t.last || c.precision == FP32 {
		return t, nil
	}
	return c.turnedTensor(t, true)
}

func (c *compiler) turnedTensor(t *tensor, last bool) (*tensor, error) {
	if t.other != nil {
		return t.other, nil
	}

	y := *t
	y.last, y.other = last, nil
	if t.Dims[1] != 1 && countElements(t.Dims[2:]) != 1 { // otherwise the bytes are the same
		y.data, y.source = nil, ""
		y.buffer = c.addBuffer(Buffer{Kind: Activation, Bytes: t.byteSize()})
		dims, xs := t.Dims, t.stridesOf()
		if last {
			dims, xs = channelsLast(dims), channelsLast(xs)
		}
		if err := c.copyTo(t, &y, dims, xs, denseStrides(dims), 0, 0); err != nil {
			return nil, err
		}
	}

	// Later users of that order share the copy.
	t.other = &y
	return &y, nil
}

// shapeTogether matches tensors to a result with dims. last reports whether the result has channels last, which it
// has if any tensor of its rank does. order is its dimensions as stored, and views has each tensor's strides in that
// order. shapeTogether replaces tensors in list that must be in the plain order.
func (c *compiler) shapeTogether(dims []int, list []*tensor) (last bool, order []int, views [][]int, err error) {
	for _, t := range list {
		last = last || t.last && len(t.Dims) == len(dims)
	}

	order = slices.Clone(dims)
	if last {
		order = channelsLast(dims)
	}

	// A tensor of lower rank has no channels to move, so it must be plain.
	for i, t := range list {
		if len(t.Dims) != len(dims) {
			if list[i], err = c.plainOrder(t); err != nil {
				return false, nil, nil, err
			}
		}

		s := list[i].spreadStrides(dims)
		if last {
			s = channelsLast(s)
		}
		views = append(views, s)
	}
	return last, order, views, nil
}

// convertType emits a cast of x, which may have either order, to y's type, in the plain order or with channels last.
func (c *compiler) convertType(x, y *tensor) error {
	dims, xs := x.Dims, x.stridesOf()
	if y.last {
		dims, xs = channelsLast(dims), channelsLast(xs)
	}
	d, s, err := joinDims(dims, xs)
	if err != nil {
		return err
	}

	p := kernels.Cast{X: c.refOf(x), Y: c.refOf(y), Count: int64(x.elements()), Dims: d, XS: s[0], From: kernelTypes[x.stored], To: kernelTypes[y.stored]}
	grid, block := kernels.Elementwise(p.Count)
	emitLaunch(c, "cast", 2, grid, block, &p)
	return nil
}
