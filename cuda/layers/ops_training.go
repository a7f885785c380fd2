package layers

import (
	"fmt"

	"downbeat.dev/cuda/kernels"
)

// Operators that inference graphs hardly have, but training graphs need: the gradient of a convolution with respect to
// its input, and the gate of a ReLU. Both become launches of the kernels for inference.

// lowerConvTranspose computes a transposed convolution as a convolution: the input is spread out by the stride, with zeros
// between its elements, and the weights are reversed in both dimensions, with input and output channels exchanged.
func lowerConvTranspose(c *compiler, n *Node) error {
	if err := c.requireFloat(0, 1, 2); err != nil {
		return err
	}

	x, w, bias := c.plainInput(0), c.plainInput(1), c.plainInput(2)
	if len(x.Dims) != 4 || len(w.Dims) != 4 || c.intAttr("group", 1) != 1 {
		return fmt.Errorf("shapes %v and %v in %d groups: 2 dimensions and one group are supported: %w", x.Dims, w.Dims, c.intAttr("group", 1), ErrUnsupported)
	}
	if x.Dims[1] != w.Dims[0] || bias != nil && bias.elements() != w.Dims[1] {
		return fmt.Errorf("weights %v for %v", w.Dims, x.Dims)
	}
	g, err := c.readTransposed(x.Dims[2:], w.Dims[2:])
	if err != nil {
		return err
	}

	spread, err := c.spreadImage(x, g, n.Outputs[0]+"/spread")
	if err != nil {
		return err
	}
	if spread, err = c.channelsLast(spread); err != nil {
		return err
	}
	reversed, err := c.reverseFilters(w, n.Outputs[0]+"/weights")
	if err != nil {
		return err
	}

	y, err := c.makeResult(n.Outputs[0], Float32, []int{x.Dims[0], w.Dims[1], g.out[0], g.out[1]})
	if err != nil {
		return err
	}
	y.last = spread.last

	p := kernels.Conv{X: c.refOf(spread), W: c.refOf(reversed), Bias: c.refOf(bias), Y: c.refOf(y),
		N: int32(x.Dims[0]), C: int32(x.Dims[1]), H: int32(spread.Dims[2]), Wd: int32(spread.Dims[3]), K: int32(w.Dims[1]),
		OH: int32(g.out[0]), OW: int32(g.out[1]), R: int32(g.size[0]), S: int32(g.size[1]), StrideH: 1, StrideW: 1,
		PadH: int32(g.top[0]), PadW: int32(g.top[1]), DilH: int32(g.dil[0]), DilW: int32(g.dil[1]), Groups: 1, NHWC: lastFlag(y)}
	c.layer.FLOP += 2 * int64(x.elements()) * int64(countElements(w.Dims[1:]))
	c.emitConv(&p, false)
	return nil
}

// readTransposed reads the attributes of a transposed convolution. The result's top and out are those of the convolution
// over the spread image; its stride is the distance at which elements of the image are spread.
func (c *compiler) readTransposed(image, size []int) (window, error) {
	g, err := c.readWindow(image, size)
	if err != nil {
		return g, err
	}
	if auto := c.node.Attrs["auto_pad"].Text; auto != "" && auto != "NOTSET" || len(c.node.Attrs["output_shape"].Ints) > 0 {
		return g, fmt.Errorf("auto_pad and output_shape: %w", ErrUnsupported)
	}

	extra := c.node.Attrs["output_padding"].Ints
	for k := range 2 {
		span := (g.size[k] - 1) * g.dil[k]
		g.out[k] = (image[k]-1)*g.stride[k] + span + 1 - g.top[k] - g.bottom[k]
		if k < len(extra) {
			if extra[k] < 0 || int(extra[k]) >= max(g.stride[k], g.dil[k]) {
				return g, fmt.Errorf("output_padding %v: want 0 to %d", extra, max(g.stride[k], g.dil[k])-1)
			}
			g.out[k] += int(extra[k])
		}
		if g.out[k] < 1 {
			return g, fmt.Errorf("a window of %v with pads %v and %v leaves nothing of %v", size, g.top, g.bottom, image)
		}
		g.top[k] = span - g.top[k]
	}
	return g, nil
}

// spreadImage puts zeros between the elements of an image, so that they are a stride apart.
func (c *compiler) spreadImage(x *tensor, g window, name string) (*tensor, error) {
	if g.stride == [2]int{1, 1} {
		return x, nil
	}

	dims := []int{x.Dims[0], x.Dims[1], (x.Dims[2]-1)*g.stride[0] + 1, (x.Dims[3]-1)*g.stride[1] + 1}
	y, err := c.makeResult(name, Float32, dims)
	if err != nil {
		return nil, err
	}
	if err := c.fillTensor(y, 0); err != nil {
		return nil, err
	}

	ys := denseStrides(dims)
	ys[2], ys[3] = ys[2]*g.stride[0], ys[3]*g.stride[1]
	return y, c.copyTo(x, y, x.Dims, denseStrides(x.Dims), ys, 0, 0)
}

// reverseFilters turns the weights [C,K,R,S] of a transposed convolution into those of a convolution, [K,C,R,S] with both
// window dimensions reversed; in half precision [K,R,S,C], as its kernels want them (orderFilters).
func (c *compiler) reverseFilters(w *tensor, name string) (*tensor, error) {
	channels, kernels, r, s := w.Dims[0], w.Dims[1], w.Dims[2], w.Dims[3]
	dims := []int{kernels, channels, r, s}
	y, err := c.makeResult(name, Float32, dims)
	if err != nil {
		return nil, err
	}

	ys := denseStrides(dims)
	if c.precision != FP32 {
		ys = []int{r * s * channels, 1, s * channels, channels}
	}
	return y, c.copyTo(w, y, dims, []int{r * s, kernels * r * s, -s, -1}, ys, r*s-1, 0)
}

// lowerGreater computes x > y as a cast of max(x−y, 0). Unlike ONNX's operator it says true if x−y is NaN: of a NaN, and
// of two infinities of one sign. The gate of a ReLU meets neither before its network is lost.
func lowerGreater(c *compiler, n *Node) error {
	if err := c.requireFloat(0, 1); err != nil {
		return err
	}

	difference, err := c.emitBinary(kernels.Sub, c.anyInput(0), c.anyInput(1), n.Outputs[0]+"/difference", false)
	if err != nil {
		return err
	}
	if err := c.emitElementwise(difference, n.Outputs[0]+"/above", activation{kind: kernels.Relu}); err != nil {
		return err
	}

	above, err := c.plainOrder(c.values[n.Outputs[0]+"/above"])
	if err != nil {
		return err
	}
	y, err := c.makeResult(n.Outputs[0], Bool, above.Dims)
	if err != nil {
		return err
	}
	return c.convertType(above, y)
}
