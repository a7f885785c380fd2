package train

import "downbeat.dev/backend/onnx"

// Layer is one step of a network. Its methods write nodes; a Layer value may be used in several
// graphs, one after the other.
type Layer interface {
	// forward writes the layer's nodes for input x and keeps what backward needs.
	forward(g *graph, x value) value
	// backward takes the name of the gradient with respect to the output, appends the gradients of the weights to
	// g.grads and returns the gradient with respect to the input; "" if first says that it is not needed.
	backward(g *graph, dy string, first bool) string
}

// Conv is a square convolution with "same" padding, a bias and, unless Linear, a ReLU.
// Height and width must be divisible by Stride.
type Conv struct {
	Out, K, Stride int64
	Linear         bool

	x, y    value
	w, bias int
	wName   string
}

func (l *Conv) forward(g *graph, x value) value {
	p := (l.K - 1) / 2
	deviation := heDeviation(x.c * l.K * l.K)
	if l.Linear {
		deviation *= 0.5
	}
	l.x = x
	l.w, l.wName = g.allotParam(deviation, 0, l.Out, x.c, l.K, l.K)
	var bias string
	l.bias, bias = g.allotParam(0, 0, l.Out)
	y := g.Node("Conv", []string{x.name, l.wName, bias}, onnx.Ints("kernel_shape", l.K, l.K),
		onnx.Ints("strides", l.Stride, l.Stride), onnx.Ints("pads", p, p, p, p))
	if !l.Linear {
		y = g.Node("Relu", []string{y})
	}
	l.y = value{y, l.Out, x.h / l.Stride, x.w / l.Stride}
	g.flops += 2 * l.Out * x.c * l.K * l.K * l.y.h * l.y.w
	return l.y
}

func (l *Conv) backward(g *graph, dy string, first bool) string {
	p := (l.K - 1) / 2
	if !l.Linear {
		dy = gateGradient(g, l.y.name, dy)
	}
	g.grads[l.bias] = g.Node("ReduceSum", []string{dy, g.Shape(0, 2, 3)}, onnx.Int("keepdims", 0))
	// dW[o,i] = Σ_batch x[·,i] ⋆ dy[·,o]: a convolution with batch and channels swapped, whose kernel
	// is dy spread out by the stride.
	endH := l.K - 1 + (l.y.h-1)*l.Stride + 1 - l.x.h - p
	endW := l.K - 1 + (l.y.w-1)*l.Stride + 1 - l.x.w - p
	swap := onnx.Ints("perm", 1, 0, 2, 3)
	dw := g.Node("Conv", []string{g.Node("Transpose", []string{l.x.name}, swap), g.Node("Transpose", []string{dy}, swap)},
		onnx.Ints("kernel_shape", l.y.h, l.y.w), onnx.Ints("dilations", l.Stride, l.Stride), onnx.Ints("pads", p, p, endH, endW))
	g.grads[l.w] = g.Node("Transpose", []string{dw}, swap)
	if first {
		return ""
	}
	outH := l.x.h - ((l.y.h-1)*l.Stride - 2*p + l.K)
	outW := l.x.w - ((l.y.w-1)*l.Stride - 2*p + l.K)
	return g.Node("ConvTranspose", []string{dy, l.wName}, onnx.Ints("kernel_shape", l.K, l.K),
		onnx.Ints("strides", l.Stride, l.Stride), onnx.Ints("pads", p, p, p, p), onnx.Ints("output_padding", outH, outW))
}

// gateGradient passes the gradient where the ReLU's output y is above 0.
func gateGradient(g *graph, y, dy string) string {
	open := g.Node("Greater", []string{y, g.Scalar(0)})
	return g.Node("Mul", []string{dy, g.Node("Cast", []string{open}, onnx.Int("to", int64(onnx.Float)))})
}

// Residual adds its input to the output of Body, which must keep the shape, and applies a ReLU.
// Body should end in a Linear layer.
type Residual struct {
	Body []Layer

	y value
}

func (l *Residual) forward(g *graph, x value) value {
	f := x
	for _, b := range l.Body {
		f = b.forward(g, f)
	}
	l.y = value{g.Node("Relu", []string{g.Node("Add", []string{x.name, f.name})}), x.c, x.h, x.w}
	return l.y
}

func (l *Residual) backward(g *graph, dy string, _ bool) string {
	dy = gateGradient(g, l.y.name, dy)
	df := dy
	for i := len(l.Body) - 1; i >= 0; i-- {
		df = l.Body[i].backward(g, df, false)
	}
	return g.Node("Add", []string{dy, df})
}

// Flatten turns [b c h w] into [b c·h·w], so that a Dense layer has the positions.
type Flatten struct{ x value }

func (l *Flatten) forward(g *graph, x value) value {
	l.x = x
	n := x.c * x.h * x.w
	return value{g.Node("Reshape", []string{x.name, g.Shape(-1, n)}), n, 0, 0}
}

func (l *Flatten) backward(g *graph, dy string, _ bool) string {
	return g.Node("Reshape", []string{dy, g.Shape(-1, l.x.c, l.x.h, l.x.w)})
}

// Dense is a fully connected layer on [b c] with a bias and, unless Linear, a ReLU.
type Dense struct {
	Out    int64
	Linear bool

	x, y    value
	w, bias int
	wName   string
}

func (l *Dense) forward(g *graph, x value) value {
	l.x = x
	deviation := heDeviation(x.c)
	if l.Linear {
		deviation *= 0.5
	}
	l.w, l.wName = g.allotParam(deviation, 0, x.c, l.Out)
	var bias string
	l.bias, bias = g.allotParam(0, 0, l.Out)
	y := g.Node("Gemm", []string{x.name, l.wName, bias})
	if !l.Linear {
		y = g.Node("Relu", []string{y})
	}
	l.y = value{y, l.Out, 0, 0}
	g.flops += 2 * x.c * l.Out
	return l.y
}

func (l *Dense) backward(g *graph, dy string, first bool) string {
	if !l.Linear {
		dy = gateGradient(g, l.y.name, dy)
	}
	g.grads[l.bias] = g.Node("ReduceSum", []string{dy, g.Shape(0)}, onnx.Int("keepdims", 0))
	g.grads[l.w] = g.Node("Gemm", []string{l.x.name, dy}, onnx.Int("transA", 1))
	if first {
		return ""
	}
	return g.Node("Gemm", []string{dy, l.wName}, onnx.Int("transB", 1))
}
