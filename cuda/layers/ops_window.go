package layers

import (
	"fmt"

	"downbeat.dev/cuda/kernels"
)

// window is the geometry of a convolution or pooling in two dimensions. One dimension counts as two with height 1.
type window struct {
	size, stride, dil, top, bottom [2]int // top and bottom: padding before and after
	out                            [2]int
}

// readWindow reads the attributes for an image of h by w; size is the kernel's extent.
func (c *compiler) readWindow(image, size []int) (g window, err error) {
	rank := len(image)

	attr := func(name string, otherwise int) []int {
		a, ok := c.node.Attrs[name]
		out := make([]int, 0, 2*rank)
		for i := range len(a.Ints) {
			out = append(out, int(a.Ints[i]))
		}
		// An omitted attribute has its default in every place, and pads have two per dimension.
		for !ok && len(out) < 2*rank {
			out = append(out, otherwise)
		}
		return out
	}

	stride, dil, pads := attr("strides", 1), attr("dilations", 1), attr("pads", 0)
	if len(stride) < rank || len(dil) < rank || len(pads) < 2*rank {
		return g, fmt.Errorf("strides %v, dilations %v, pads %v for %d dimensions", stride, dil, pads, rank)
	}

	// One-dimensional windows are two-dimensional ones of height 1.
	for i := range 2 {
		g.size[i], g.stride[i], g.dil[i], g.out[i] = 1, 1, 1, 1
	}

	for i := range rank {
		k := i + 2 - rank
		g.size[k], g.stride[k], g.dil[k], g.top[k], g.bottom[k] = size[i], stride[i], dil[i], pads[i], pads[rank+i]
		if err := g.computeExtent(k, image[i], c.node.Attrs["auto_pad"].Text, c.intAttr("ceil_mode", 0) != 0); err != nil {
			return g, err
		}
	}
	return g, nil
}

// computeExtent computes the output's extent along one dimension.
func (g *window) computeExtent(k, image int, auto string, ceil bool) error {
	// The numbers come from a file and are added and multiplied below, so they must not overflow.
	const most = 1 << 20

	for _, v := range []int{g.size[k], g.stride[k], g.dil[k]} {
		if v < 1 || v > most {
			return fmt.Errorf("window size %d, stride %d, dilation %d: must be 1 to %d", g.size[k], g.stride[k], g.dil[k], most)
		}
	}

	if g.top[k] < 0 || g.top[k] > most || g.bottom[k] < 0 || g.bottom[k] > most {
		return fmt.Errorf("padding %d and %d: must be 0 to %d", g.top[k], g.bottom[k], most)
	}

	span := (g.size[k]-1)*g.dil[k] + 1

	// SAME pads so that the output is the input divided by the stride. The odd pixel goes to the end or to the
	// beginning.
	switch auto {
	case "", "NOTSET":
	case "VALID":
		g.top[k], g.bottom[k] = 0, 0
	case "SAME_UPPER", "SAME_LOWER":
		pad := max(((image+g.stride[k]-1)/g.stride[k]-1)*g.stride[k]+span-image, 0)
		g.top[k], g.bottom[k] = pad/2, pad-pad/2
		if auto == "SAME_LOWER" {
			g.top[k], g.bottom[k] = g.bottom[k], g.top[k]
		}
	default:
		return fmt.Errorf("auto_pad %q", auto)
	}

	room := image + g.top[k] + g.bottom[k] - span
	if room < 0 {
		return fmt.Errorf("a window of %d does not fit %d with padding %d and %d", span, image, g.top[k], g.bottom[k])
	}

	g.out[k] = room/g.stride[k] + 1
	if ceil && room%g.stride[k] != 0 && g.out[k]*g.stride[k] < image+g.top[k] {
		g.out[k]++ // a window that starts inside the image or its padding before, and ends outside
	}
	return nil
}

// planeOf returns the height and the width of an image of one or two dimensions.
func planeOf(image []int) (h, w int) {
	if len(image) == 1 {
		return 1, image[0]
	}
	return image[0], image[1]
}

// isPointwise reports whether every output pixel depends only on the input pixel at the same place.
func (g *window) isPointwise() bool {
	return g.size == [2]int{1, 1} && g.stride == [2]int{1, 1} && g.top == [2]int{} && g.bottom == [2]int{}
}

func lowerPool(mode int32) func(*compiler, *Node) error {
	return func(c *compiler, n *Node) error {
		if err := c.requireFloat(0); err != nil {
			return err
		}

		x := c.anyInput(0)
		rank := len(x.Dims) - 2
		size := []int{}
		for _, v := range n.Attrs["kernel_shape"].Ints {
			size = append(size, int(v))
		}
		if rank < 1 || rank > 2 || len(size) != rank || len(n.Outputs) > 1 && n.Outputs[1] != "" {
			return fmt.Errorf("kernel shape %v for %v with %d outputs: %w", size, x.Dims, len(n.Outputs), ErrUnsupported)
		}

		g, err := c.readWindow(x.Dims[2:], size)
		if err != nil {
			return err
		}

		m := mode
		if mode == kernels.PoolAverage && c.intAttr("count_include_pad", 0) != 0 {
			if m = kernels.PoolAveragePadding; c.intAttr("ceil_mode", 0) != 0 {
				// The last window may extend beyond the padding, and the kernel would still divide by its full size.
				return fmt.Errorf("ceil_mode with count_include_pad: %w", ErrUnsupported)
			}
		}

		y, err := c.makeResult(n.Outputs[0], Float32, append([]int{x.Dims[0], x.Dims[1]}, g.out[2-rank:]...))
		if err != nil {
			return err
		}

		y.last = x.last

		h, w := planeOf(x.Dims[2:])
		p := kernels.Pool{X: c.refOf(x), Y: c.refOf(y), Planes: int32(x.Dims[0] * x.Dims[1]), H: int32(h), Wd: int32(w),
			OH: int32(g.out[0]), OW: int32(g.out[1]), R: int32(g.size[0]), S: int32(g.size[1]),
			StrideH: int32(g.stride[0]), StrideW: int32(g.stride[1]), PadH: int32(g.top[0]), PadW: int32(g.top[1]),
			DilH: int32(g.dil[0]), DilW: int32(g.dil[1]), Mode: m,
			Channels: int32(x.Dims[1]), NHWC: lastFlag(y)}

		grid, block := kernels.Elementwise(int64(y.elements()))
		emitLaunch(c, "pool", 2, grid, block, &p)
		return nil
	}
}
