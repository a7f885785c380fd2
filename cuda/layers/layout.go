package layers

import (
	"slices"

	"downbeat.dev/cuda/kernels"
)

// In half precision images lie in memory with channels last, which is what matrix units want: a tensor's Dims are
// [N,C,H,W] all the same, its field last says that its bytes are in the order [N,H,W,C]. Operators that
// work on images take tensors as they are (any); to all others in gives them in the plain order.

// channelsLast moves the second of some dimensions, or of their strides, to the end.
func channelsLast(v []int) []int {
	return append(append([]int{v[0]}, v[2:]...), v[1])
}

// stridesOf returns where a tensor's elements lie, in the order of its Dims.
func (t *tensor) stridesOf() []int {
	if !t.last {
		return denseStrides(t.Dims)
	}
	s := denseStrides(channelsLast(t.Dims))
	n := len(s)
	return append([]int{s[0], s[n-1]}, s[1:n-1]...)
}

// spreadStrides returns a tensor's strides for the shape out: 0 where it is repeated.
func (t *tensor) spreadStrides(out []int) []int {
	s, own := make([]int, len(out)), t.stridesOf()
	for i := range out {
		if j := i - len(out) + len(t.Dims); j >= 0 && t.Dims[j] != 1 {
			s[i] = own[j]
		}
	}
	return s
}

// plainOrder returns t in the plain order, copying it at most once.
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
	if t.Dims[1] != 1 && countElements(t.Dims[2:]) != 1 { // else the bytes are the same
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

	// Whoever needs that order next takes the copy that there is.
	t.other = &y
	return &y, nil
}

// shapeTogether fits tensors to a result of dims: whether it has channels last, as any of them of its rank has; the
// result's dimensions as they lie in memory, and each tensor's strides in that order. Tensors that must be
// in the plain order are replaced in list.
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

// convertType emits a cast of x, whatever its order, to y's type in the plain order, or with channels last.
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
