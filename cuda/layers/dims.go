package layers

import (
	"fmt"

	"downbeat.dev/cuda/kernels"
)

// denseStrides returns the row-major strides of a shape, in elements.
func denseStrides(dims []int) []int {
	s := make([]int, len(dims))
	n := 1
	for i := len(dims) - 1; i >= 0; i-- {
		s[i] = n
		n *= dims[i]
	}
	return s
}

// broadcastShape returns the common shape of two shapes by ONNX's (NumPy's) broadcasting rule.
func broadcastShape(a, b []int) ([]int, error) {
	n := max(len(a), len(b))
	out := make([]int, n)
	for i := range out {
		x, y := dimFromEnd(a, n-i), dimFromEnd(b, n-i)
		if x != y && x != 1 && y != 1 {
			return nil, fmt.Errorf("shapes %v and %v do not broadcast", a, b)
		}
		out[i] = x
		if x == 1 {
			out[i] = y
		}
	}
	return out, nil
}

func dimFromEnd(dims []int, k int) int {
	if k > len(dims) {
		return 1
	}
	return dims[len(dims)-k]
}

// repeatedStrides returns the strides of a tensor that is read with the shape out: 0 where it repeats.
func repeatedStrides(dims, out []int) []int {
	s, d := make([]int, len(out)), denseStrides(dims)
	for i := range out {
		if j := i - len(out) + len(dims); j >= 0 && dims[j] != 1 {
			s[i] = d[j]
		}
	}
	return s
}

// joinDims merges adjacent dimensions that every view traverses as one, drops those of extent 1, and prepends
// dimensions of extent 1 up to the kernels' rank.
func joinDims(dims []int, views ...[]int) ([kernels.RankMax]int32, [][kernels.RankMax]int32, error) {
	var out [kernels.RankMax]int32
	strides := make([][kernels.RankMax]int32, len(views))

	var d []int
	v := make([][]int, len(views))
	for i, n := range dims {
		if n == 1 {
			continue
		}

		// Two dimensions merge if every view steps over them evenly.
		one := len(d) > 0
		for k := range views {
			one = one && v[k][len(d)-1] == views[k][i]*n
		}

		if one {
			d[len(d)-1] *= n
			for k := range views {
				v[k][len(d)-1] = views[k][i]
			}
			continue
		}

		d = append(d, n)
		for k := range views {
			v[k] = append(v[k], views[k][i])
		}
	}

	if len(d) > kernels.RankMax {
		return out, nil, fmt.Errorf("%d dimensions that cannot be joined, at most %d: %w", len(d), kernels.RankMax, ErrUnsupported)
	}

	// Kernels take RankMax dimensions: prepend the missing ones.
	pad := kernels.RankMax - len(d)
	for i := range out {
		out[i] = 1
		if i >= pad {
			out[i] = int32(d[i-pad])
			for k := range views {
				strides[k][i] = int32(v[k][i-pad])
			}
		}
	}
	return out, strides, nil
}

// constantInts returns a constant input as integers; how names their use in errors.
func (c *compiler) constantInts(i int, how string) ([]int, error) {
	t := c.plainInput(i)
	if t == nil {
		return nil, nil
	}

	if !t.isConstant() {
		return nil, fmt.Errorf("%s %q is not a constant: %w", how, t.Name, ErrUnsupported)
	}

	var out []int
	switch t.Type {
	case Int64:
		for _, v := range intsOf(t.data) {
			out = append(out, int(v))
		}
	case Int32:
		for _, v := range viewOf[int32](t.data) {
			out = append(out, int(v))
		}
	default:
		return nil, fmt.Errorf("%s %q is %v", how, t.Name, t.Type)
	}

	// No dimensions is a valid shape, that of a scalar.
	if out == nil {
		out = []int{}
	}
	return out, nil
}

// intsAttr returns integers from an attribute, or from an input, as later operator sets have it.
func (c *compiler) intsAttr(name string, input int) ([]int, error) {
	if a, ok := c.node.Attrs[name]; ok {
		out := []int{}
		for _, v := range a.Ints {
			out = append(out, int(v))
		}
		return out, nil
	}
	return c.constantInts(input, name)
}

func (c *compiler) intAttr(name string, otherwise int) int {
	if a, ok := c.node.Attrs[name]; ok {
		return int(a.Int)
	}
	return otherwise
}

func (c *compiler) floatAttr(name string, otherwise float32) float32 {
	if a, ok := c.node.Attrs[name]; ok {
		return a.Float
	}
	return otherwise
}

// axisIndex converts an axis, which may count from the end, to an index below rank.
func axisIndex(a, rank int) (int, error) {
	if a < -rank || a >= rank {
		return 0, fmt.Errorf("axis %d of %d dimensions", a, rank)
	}
	return (a + rank) % rank, nil
}

func countElements(dims []int) int {
	n := 1
	for _, d := range dims {
		n *= d
	}
	return n
}
