package gpu

import (
	"fmt"

	"downbeat.dev/backend/onnx"
)

// Case is a graph to check, with its batch sizes.
type Case struct {
	Name    string
	Model   *onnx.Model
	Batches []int
	IntMax  int64 // integer inputs are drawn from 0 to IntMax−1; 0 means 2
}

// opCase returns a small graph: f gets a builder and its input of the given dims and returns the result.
func opCase(name string, dims []int64, f func(n *net, x string) string) Case {
	n := newNet(name, 9)
	x := n.Input("x", onnx.Float, onnx.Batched(dims...))
	n.Output("y", f(n, x), onnx.Float, nil)
	return Case{Name: name, Model: n.buildModel(13), Batches: []int{1, 3}}
}

// Operators returns a case for every operator, in each different form.
func Operators() []Case {
	all := append(elementwiseCases(), convCases()...)
	all = append(all, productCases()...)
	all = append(all, indexCases()...)
	all = append(all, optionCases()...)
	all = append(all, attentionCases()...)
	return append(all, rowCases()...)
}

func elementwiseCases() (all []Case) {
	for _, name := range []string{"Relu", "Sigmoid", "Tanh", "HardSwish", "Erf", "Exp", "Neg", "Abs", "Floor", "Ceil", "Softplus", "LeakyRelu", "Elu", "HardSigmoid"} {
		c := opCase(name, []int64{5, 77}, func(n *net, x string) string { return n.Node(name, []string{x}) })
		if name == "HardSwish" { // since operator set 14
			c.Model.Opsets[0].Version = 14
		}
		all = append(all, c)
	}

	// Defined only above 0.
	for _, name := range []string{"Log", "Sqrt", "Reciprocal"} {
		all = append(all, opCase(name, []int64{33}, func(n *net, x string) string {
			return n.Node(name, []string{n.Node("Add", []string{n.Node("Abs", []string{x}), n.Scalar(0.5)})})
		}))
	}

	all = append(all, opCase("Clip", []int64{99}, func(n *net, x string) string { return n.addActivation(x, "Relu6") }),
		opCase("Swish", []int64{99}, func(n *net, x string) string {
			return n.Node("Mul", []string{n.Node("Sigmoid", []string{x}), x})
		}))

	// Both operands are broadcast, and in the second case the constant comes first.
	for _, name := range []string{"Add", "Sub", "Mul", "Div", "Min", "Max"} {
		all = append(all, opCase(name+" broadcast", []int64{4, 1, 6}, func(n *net, x string) string {
			return n.Node(name, []string{x, n.Node("Reshape", []string{n.addAround(2, 1, 30), n.Shape(5, 6)})})
		}), opCase(name+" channel", []int64{4, 3, 2}, func(n *net, x string) string {
			if name == "Div" { // a quotient by a number near 0 exceeds half precision
				x = n.Node("Add", []string{n.Node("Abs", []string{x}), n.Scalar(0.5)})
			}
			return n.Node("Relu", []string{n.Node(name, []string{n.Node("Reshape", []string{n.addAround(2, 1, 4), n.Shape(1, 4, 1, 1)}), x})})
		}))
	}

	return append(all, opCase("Pow", []int64{40}, func(n *net, x string) string { return n.Node("Pow", []string{x, n.Scalar(2)}) }),
		opCase("Pow 3", []int64{40}, func(n *net, x string) string { return n.Node("Pow", []string{x, n.Scalar(3)}) }),
		opCase("Sum of three", []int64{8}, func(n *net, x string) string { return n.Node("Sum", []string{x, x, n.addAround(1, 1, 8)}) }))
}

func convCases() (all []Case) {
	// Odd sizes leave tiles partly filled; as many groups as channels make a convolution depthwise.
	for _, c := range []struct{ in, out, k, stride, groups int64 }{{3, 8, 3, 1, 1}, {8, 70, 1, 1, 1}, {6, 8, 3, 2, 2}, {16, 16, 3, 1, 16}, {8, 16, 5, 2, 4}, {12, 12, 5, 2, 12}, {70, 66, 3, 1, 1}} {
		name := fmt.Sprintf("Conv %d to %d, %d by %d, stride %d, %d groups", c.in, c.out, c.k, c.k, c.stride, c.groups)
		all = append(all, opCase(name, []int64{c.in, 9, 11}, func(n *net, x string) string { return n.addConv(x, c.in, c.out, c.k, c.stride, c.groups, "Relu") }))
	}

	all = append(all, opCase("Conv one dimension, dilated, with bias", []int64{4, 20}, func(n *net, x string) string {
		return n.Node("Conv", []string{x, n.addWeights(12, 6, 4, 3), n.addAround(0, 1, 6)}, onnx.Ints("dilations", 2), onnx.Ints("pads", 1, 3))
	}), opCase("Conv with residual", []int64{8, 6, 6}, func(n *net, x string) string {
		return n.Node("Relu", []string{n.Node("Add", []string{x, n.addConv(x, 8, 8, 3, 1, 1, "")})})
	}), opCase("Conv same padding", []int64{2, 7, 8}, func(n *net, x string) string {
		return n.Node("Conv", []string{x, n.addWeights(18, 4, 2, 4, 3)}, onnx.Text("auto_pad", "SAME_UPPER"), onnx.Ints("strides", 2, 2))
	}), opCase("BatchNormalization", []int64{5, 4, 4}, func(n *net, x string) string {
		return n.Node("BatchNormalization", []string{x, n.addAround(1, 0.5, 5), n.addAround(0, 0.5, 5), n.addAround(0, 0.5, 5), n.addAround(1, 0.5, 5)})
	}))

	// Gradients with respect to a convolution's input: strides that leave pixels over, a dilation, a bias.
	for _, c := range []struct{ k, stride, pad, extra, dil int64 }{{3, 1, 1, 0, 1}, {3, 2, 1, 1, 1}, {5, 2, 2, 0, 1}, {2, 3, 0, 2, 1}, {3, 1, 0, 0, 2}} {
		name := fmt.Sprintf("ConvTranspose %d by %d, stride %d, padding %d and %d, dilation %d", c.k, c.k, c.stride, c.pad, c.extra, c.dil)
		all = append(all, opCase(name, []int64{6, 5, 7}, func(n *net, x string) string {
			return n.Node("ConvTranspose", []string{x, n.addWeights(int(6*c.k*c.k), 6, 9, c.k, c.k), n.addAround(0, 1, 9)}, onnx.Ints("strides", c.stride, c.stride),
				onnx.Ints("pads", c.pad, c.pad, c.pad, c.pad), onnx.Ints("output_padding", c.extra, c.extra), onnx.Ints("dilations", c.dil, c.dil))
		}))
	}

	for _, p := range []string{"MaxPool", "AveragePool"} {
		for ceil := range int64(2) {
			all = append(all, opCase(fmt.Sprintf("%s ceil %d", p, ceil), []int64{3, 10, 11}, func(n *net, x string) string {
				return n.Node(p, []string{x}, onnx.Ints("kernel_shape", 3, 2), onnx.Ints("strides", 2, 2), onnx.Ints("pads", 1, 0, 1, 1), onnx.Int("ceil_mode", ceil))
			}))
		}
	}

	return append(all, opCase("AveragePool with padding", []int64{3, 8, 8}, func(n *net, x string) string {
		return n.Node("AveragePool", []string{x}, onnx.Ints("kernel_shape", 3, 3), onnx.Ints("pads", 1, 1, 1, 1), onnx.Int("count_include_pad", 1))
	}), opCase("GlobalAveragePool", []int64{6, 7, 5}, func(n *net, x string) string { return n.Node("GlobalAveragePool", []string{x}) }),
		opCase("GlobalMaxPool", []int64{6, 7, 5}, func(n *net, x string) string { return n.Node("GlobalMaxPool", []string{x}) }))
}

func productCases() (all []Case) {
	// The same numbers in both layouts of the weight: this finds a kernel that ignores transB.
	for trans := range int64(2) {
		all = append(all, opCase(fmt.Sprintf("Gemm transB %d", trans), []int64{70}, func(n *net, x string) string {
			dims := [][]int64{{70, 65}, {65, 70}}[trans]
			return n.Node("Gemm", []string{x, n.addWeights(70, dims...), n.addAround(0, 1, 65)}, onnx.Int("transB", trans), onnx.FloatAttr("alpha", 0.5), onnx.FloatAttr("beta", 2))
		}))
	}

	return append(all, opCase("MatMul with bias and Gelu", []int64{9, 20}, func(n *net, x string) string {
		y := n.addLinear(x, 20, 67)
		e := n.Node("Add", []string{n.Node("Erf", []string{n.Node("Div", []string{y, n.Scalar(1.4142135)})}), n.Scalar(1)})
		return n.Node("Mul", []string{n.Node("Mul", []string{y, e}), n.Scalar(0.5)})
	}), opCase("MatMul with residual", []int64{9, 20}, func(n *net, x string) string {
		return n.Node("Add", []string{x, n.addLinear(x, 20, 20)})
	}), opCase("MatMul of batches", []int64{4, 9, 20}, func(n *net, x string) string {
		return n.Node("MatMul", []string{x, n.Node("Transpose", []string{x}, onnx.Ints("perm", 0, 1, 3, 2))})
	}), opCase("MatMul with a repeated batch", []int64{4, 6, 5}, func(n *net, x string) string {
		return n.Node("MatMul", []string{x, n.addWeights(5, 4, 5, 7)})
	}))
}

// indexCases are operators that move elements or compute shapes.
func indexCases() []Case {
	// Negative and reversed indices, and shapes known only from other tensors.
	all := []Case{
		opCase("Transpose", []int64{3, 4, 5}, func(n *net, x string) string { return n.Node("Transpose", []string{x}, onnx.Ints("perm", 0, 3, 1, 2)) }),
		opCase("Concat", []int64{3, 4}, func(n *net, x string) string {
			return n.Node("Concat", []string{x, n.Node("Relu", []string{x}), x}, onnx.Int("axis", 2))
		}),
		opCase("Slice", []int64{6, 9}, func(n *net, x string) string {
			return n.Node("Slice", []string{x, n.Shape(-1, 1), n.Shape(-6, 9), n.Shape(1, 2), n.Shape(-2, 3)})
		}),
		opCase("Split", []int64{7, 4}, func(n *net, x string) string {
			n.NodeTo("Split", []string{"a", "b", "c"}, []string{x, n.Shape(2, 1, 4)}, onnx.Int("axis", 1))
			return n.Node("Concat", []string{"c", "a", "b"}, onnx.Int("axis", 1))
		}),
		opCase("Pad", []int64{3, 4}, func(n *net, x string) string {
			return n.Node("Pad", []string{x, n.Shape(0, 1, 2, 0, 0, 3), n.Scalar(-7)})
		}),
		opCase("Expand", []int64{1, 4}, func(n *net, x string) string { return n.Node("Expand", []string{x, n.Shape(1, 5, 1)}) }),
		opCase("Gather constant", []int64{5, 4}, func(n *net, x string) string {
			return n.Node("Gather", []string{x, n.Shape(3, -1, 0)}, onnx.Int("axis", 1))
		}),
		opCase("Reshape by computed shape", []int64{4, 6}, func(n *net, x string) string {
			s := n.Node("Gather", []string{n.Node("Shape", []string{x}), n.Shape(0)})
			s = n.Node("Concat", []string{s, n.Node("Mul", []string{n.Shape(2), n.Shape(4)}), n.Shape(-1)}, onnx.Int("axis", 0))
			return n.Node("Reshape", []string{x, s})
		}),
		opCase("Squeeze and Unsqueeze", []int64{1, 4}, func(n *net, x string) string {
			return n.Node("Unsqueeze", []string{n.Node("Squeeze", []string{x, n.Shape(1)}), n.Shape(1, 3)})
		}),
		opCase("Greater", []int64{6, 5}, func(n *net, x string) string {
			open := n.Node("Greater", []string{n.Node("Relu", []string{x}), n.Scalar(0)})
			return n.Node("Mul", []string{x, n.Node("Cast", []string{open}, onnx.Int("to", 1))})
		}),
		opCase("Where of a constant", []int64{4}, func(n *net, x string) string {
			c := n.Const(onnx.Tensor{Type: onnx.Bool, Dims: []int64{4}, Raw: []byte{1, 0, 0, 1}})
			return n.Node("Where", []string{c, x, n.Scalar(-3)})
		}),
	}
	return append(all, castCases()...)
}

func castCases() []Case {
	n := newNet("Cast of images", 3)
	x := n.Input("x", onnx.Uint8, onnx.Batched(6, 5, 3))
	y := n.Node("Div", []string{n.Node("Cast", []string{x}, onnx.Int("to", 1)), n.Scalar(255)})
	n.Output("y", n.Node("Transpose", []string{y}, onnx.Ints("perm", 0, 3, 1, 2)), onnx.Float, nil)
	images := Case{Name: "Cast of images", Model: n.buildModel(13), Batches: []int{1, 2}, IntMax: 256}

	n = newNet("Gather of embeddings", 4)
	ids := n.Input("ids", onnx.Int64, onnx.Batched(7))
	n.Output("y", n.Node("Gather", []string{n.addWeights(1, 11, 6), ids}), onnx.Float, nil)
	embeddings := Case{Name: "Gather of embeddings", Model: n.buildModel(13), Batches: []int{1, 4}, IntMax: 11}
	return []Case{images, embeddings}
}

func rowCases() (all []Case) {
	for _, name := range []string{"Softmax", "LogSoftmax"} {
		for _, a := range []int64{-1, 1} {
			all = append(all, opCase(fmt.Sprintf("%s axis %d", name, a), []int64{7, 300}, func(n *net, x string) string {
				return n.Node(name, []string{x}, onnx.Int("axis", a))
			}))
		}
	}

	for _, name := range []string{"ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2"} {
		for _, axes := range [][]int64{{-1}, {1, 3}, {2}} {
			all = append(all, opCase(fmt.Sprintf("%s over %v", name, axes), []int64{3, 4, 5}, func(n *net, x string) string {
				return n.Node(name, []string{x}, onnx.Ints("axes", axes...), onnx.Int("keepdims", int64(len(axes)%2)))
			}))
		}
	}

	norm := opCase("LayerNormalization", []int64{6, 80}, func(n *net, x string) string { return n.addNorm(x, 80) })
	norm.Model.Opsets[0].Version = 17

	arg := newNet("ArgMax", 5)
	x := arg.Input("x", onnx.Float, onnx.Batched(6, 40))
	arg.Output("y", arg.Node("ArgMax", []string{x}, onnx.Int("axis", 2), onnx.Int("keepdims", 0)), onnx.Int64, nil)

	return append(all, opCase("ReduceSum", []int64{3, 4}, func(n *net, x string) string {
		return n.Node("ReduceSum", []string{x, n.Shape(1)}, onnx.Int("keepdims", 0))
	}), norm, Case{Name: "ArgMax", Model: arg.buildModel(13), Batches: []int{1, 3}})
}

// optionCases are products and convolutions whose depth is split, and that fill tiles fully and partly.
func optionCases() (all []Case) {
	for _, d := range [][3]int64{{40, 264, 136}, {130, 72, 24}} {
		all = append(all, opCase(fmt.Sprintf("MatMul %v with residual and Relu", d), []int64{d[0], d[1]}, func(n *net, x string) string {
			y := n.addLinear(x, d[1], d[2])
			return n.Node("Relu", []string{n.Node("Add", []string{y, n.addLinear(x, d[1], d[2])})})
		}))
	}
	return append(all, opCase("Conv deep", []int64{136, 4, 5}, func(n *net, x string) string {
		return n.addConv(n.addConv(x, 136, 72, 3, 1, 1, "Relu"), 72, 130, 1, 1, 1, "Relu6")
	}), opCase("Conv of images", []int64{3, 21, 22}, func(n *net, x string) string { return n.addConv(x, 3, 64, 7, 2, 1, "Relu") }))
}

// attentionCases are encoders whose heads and lengths do not fill the kernels' tiles.
func attentionCases() []Case {
	return []Case{
		{Name: "Attention 2 heads of 96, 37 tokens", Model: BERT(BERTConfig{1, 192, 2, 64, 37, 30}, 3), Batches: []int{1, 2}, IntMax: 2},
		{Name: "Attention 3 heads of 10, 70 tokens", Model: BERT(BERTConfig{1, 30, 3, 64, 70, 30}, 4), Batches: []int{1, 2}, IntMax: 2},
		{Name: "Attention 2 heads of 64, 65 tokens", Model: BERT(BERTConfig{1, 128, 2, 64, 65, 30}, 5), Batches: []int{1, 2}, IntMax: 2},
	}
}

// Networks returns whole graphs that are small enough for the emulated device.
func Networks() []Case {
	return []Case{
		{Name: "resnet50 32", Model: ResNet50(32, 1), Batches: []int{1}},
		{Name: "mobilenet 32", Model: MobileNet(32, 1), Batches: []int{2}},
		{Name: "bert small", Model: BERT(BERTConfig{2, 64, 4, 256, 16, 100}, 1), Batches: []int{1, 3}, IntMax: 2},
	}
}

// FullNetworks returns the measured graphs.
func FullNetworks() []Case {
	return []Case{
		{Name: "resnet50", Model: ResNet50(224, 1), Batches: []int{1, 4}},
		{Name: "mobilenet", Model: MobileNet(224, 1), Batches: []int{1, 4}},
		{Name: "bert-base", Model: BERT(BERTBase, 1), Batches: []int{1, 4}, IntMax: 2},
	}
}
