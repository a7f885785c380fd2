package gpu

import (
	"fmt"
	"math"
	"math/rand/v2"

	"downbeat.dev/backend/onnx"
)

// net builds graphs with random weights; sizes of channels are multiplied by nothing: shapes are what they say.
type net struct {
	*onnx.Builder
	rng *rand.Rand
}

func newNet(name string, seed uint64) *net {
	return &net{onnx.NewBuilder(name), rand.New(rand.NewPCG(seed, 42))}
}

// weights are normal with a deviation that keeps activations near one.
func (n *net) weights(fan int, dims ...int64) string {
	count := int64(1)
	for _, d := range dims {
		count *= d
	}
	v := make([]float32, count)
	scale := math.Sqrt(1.5 / float64(fan))
	for i := range v {
		v[i] = float32(n.rng.NormFloat64() * scale)
	}
	return n.Const(onnx.FloatTensor("", v, dims...))
}

// around are numbers near mean.
func (n *net) around(mean, spread float64, dims ...int64) string {
	v := make([]float32, dims[0])
	for i := range v {
		v[i] = float32(mean + spread*(2*n.rng.Float64()-1))
	}
	return n.Const(onnx.FloatTensor("", v, dims...))
}

// conv is a convolution over k×k with same padding, normalisation and an activation ("" for none).
func (n *net) conv(x string, in, out, k, stride, groups int64, act string) string {
	p := (k - 1) / 2
	y := n.Node("Conv", []string{x, n.weights(int(in/groups*k*k), out, in/groups, k, k)},
		onnx.Ints("kernel_shape", k, k), onnx.Ints("strides", stride, stride), onnx.Ints("pads", p, p, p, p), onnx.Int("group", groups))
	y = n.Node("BatchNormalization", []string{y, n.around(1, 0.2, out), n.around(0, 0.2, out), n.around(0, 0.2, out), n.around(1, 0.2, out)},
		onnx.FloatAttr("epsilon", 1e-5))
	return n.act(y, act)
}

func (n *net) act(x, act string) string {
	switch act {
	case "":
		return x
	case "Relu6":
		return n.Node("Clip", []string{x, n.Scalar(0), n.Scalar(6)})
	}
	return n.Node(act, []string{x})
}

func (n *net) model(opset int64) *onnx.Model {
	m, err := n.Model(opset)
	if err != nil {
		panic(fmt.Sprintf("graph of this package: %v", err)) // a mistake in this file
	}
	return m
}

// head is global pooling and a classifier of classes.
func (n *net) head(x string, width, classes int64) {
	x = n.Node("GlobalAveragePool", []string{x})
	x = n.Node("Flatten", []string{x}, onnx.Int("axis", 1))
	x = n.Node("Gemm", []string{x, n.weights(int(width), classes, width), n.around(0, 0.1, classes)}, onnx.Int("transB", 1))
	n.Output("logits", x, onnx.Float, onnx.Batched(classes))
}

// ResNet50 is the graph of ResNet-50 v1.5 with random weights, for images of size by size.
func ResNet50(size int64, seed uint64) *onnx.Model {
	n := newNet("resnet50", seed)
	x := n.Input("image", onnx.Float, onnx.Batched(3, size, size))
	return n.resNet50(x)
}

// ResNet50Bytes takes images as they come: size by size by 3 bytes, 147 KiB for 224.
func ResNet50Bytes(size int64, seed uint64) *onnx.Model {
	n := newNet("resnet50-bytes", seed)
	x := n.Input("image", onnx.Uint8, onnx.Batched(size, size, 3))
	x = n.Node("Mul", []string{n.Node("Cast", []string{x}, onnx.Int("to", 1)), n.Scalar(1.0 / 127)})
	return n.resNet50(n.Node("Transpose", []string{x}, onnx.Ints("perm", 0, 3, 1, 2)))
}

func (n *net) resNet50(x string) *onnx.Model {
	x = n.conv(x, 3, 64, 7, 2, 1, "Relu")
	x = n.Node("MaxPool", []string{x}, onnx.Ints("kernel_shape", 3, 3), onnx.Ints("strides", 2, 2), onnx.Ints("pads", 1, 1, 1, 1))
	in := int64(64)
	for stage, blocks := range []int{3, 4, 6, 3} {
		mid := int64(64) << stage
		for b := range blocks {
			stride := int64(1)
			if b == 0 && stage > 0 {
				stride = 2
			}
			y := n.conv(x, in, mid, 1, 1, 1, "Relu")
			y = n.conv(y, mid, mid, 3, stride, 1, "Relu")
			y = n.conv(y, mid, 4*mid, 1, 1, 1, "")
			if b == 0 {
				x = n.conv(x, in, 4*mid, 1, stride, 1, "")
			}
			x = n.Node("Relu", []string{n.Node("Add", []string{y, x})})
			in = 4 * mid
		}
	}
	n.head(x, in, 1000)
	return n.model(13)
}

// MobileNet is the graph of MobileNetV2 with random weights, for images of size by size.
func MobileNet(size int64, seed uint64) *onnx.Model {
	n := newNet("mobilenet", seed)
	x := n.Input("image", onnx.Float, onnx.Batched(3, size, size))
	x = n.conv(x, 3, 32, 3, 2, 1, "Relu6")
	in := int64(32)
	for _, s := range [][4]int64{{1, 16, 1, 1}, {6, 24, 2, 2}, {6, 32, 3, 2}, {6, 64, 4, 2}, {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}} {
		for b := range s[2] {
			stride := int64(1)
			if b == 0 {
				stride = s[3]
			}
			mid, y := in*s[0], x
			if s[0] > 1 {
				y = n.conv(y, in, mid, 1, 1, 1, "Relu6")
			}
			y = n.conv(y, mid, mid, 3, stride, mid, "Relu6")
			y = n.conv(y, mid, s[1], 1, 1, 1, "")
			if stride == 1 && in == s[1] {
				y = n.Node("Add", []string{x, y})
			}
			x, in = y, s[1]
		}
	}
	x = n.conv(x, in, 1280, 1, 1, 1, "Relu6")
	n.head(x, 1280, 1000)
	return n.model(13)
}

// BERTConfig are the sizes of a BERT-shaped encoder.
type BERTConfig struct{ Layers, Hidden, Heads, Inner, Sequence, Vocabulary int64 }

// BERTBase is BERT-base with sequences of 128 tokens.
var BERTBase = BERTConfig{12, 768, 12, 3072, 128, 30522}

// BERT is an encoder over token ids and an attention mask of zeros and ones, as exporters write it.
func BERT(c BERTConfig, seed uint64) *onnx.Model {
	n := newNet("bert", seed)
	ids := n.Input("input_ids", onnx.Int64, onnx.Batched(c.Sequence))
	mask := n.Input("attention_mask", onnx.Int64, onnx.Batched(c.Sequence))
	m := n.Node("Cast", []string{mask}, onnx.Int("to", 1))
	m = n.Node("Unsqueeze", []string{m, n.Shape(1, 2)})
	m = n.Node("Mul", []string{n.Node("Sub", []string{n.Scalar(1), m}), n.Scalar(-10000)})
	x := n.Node("Gather", []string{n.weights(1, c.Vocabulary, c.Hidden), ids})
	pos := n.weights(1, 512, c.Hidden)
	x = n.Node("Add", []string{x, n.Node("Slice", []string{pos, n.Shape(0), n.Shape(c.Sequence), n.Shape(0)})})
	x = n.norm(x, c.Hidden)
	for range c.Layers {
		x = n.encoder(x, m, c)
	}
	first := n.Node("Gather", []string{x, n.Const(onnx.IntTensor("", []int64{0}))}, onnx.Int("axis", 1))
	pooled := n.Node("Tanh", []string{n.linear(first, c.Hidden, c.Hidden)})
	n.Output("pooled", pooled, onnx.Float, onnx.Batched(c.Hidden))
	return n.model(17)
}

func (n *net) norm(x string, width int64) string {
	return n.Node("LayerNormalization", []string{x, n.around(1, 0.2, width), n.around(0, 0.2, width)}, onnx.Int("axis", -1), onnx.FloatAttr("epsilon", 1e-12))
}

func (n *net) linear(x string, in, out int64) string {
	return n.Node("Add", []string{n.Node("MatMul", []string{x, n.weights(int(in), in, out)}), n.around(0, 0.1, out)})
}

func (n *net) encoder(x, mask string, c BERTConfig) string {
	size := c.Hidden / c.Heads
	heads := func(y string, perm ...int64) string {
		y = n.Node("Reshape", []string{n.linear(y, c.Hidden, c.Hidden), n.Shape(0, 0, c.Heads, size)})
		return n.Node("Transpose", []string{y}, onnx.Ints("perm", perm...))
	}
	q, k, v := heads(x, 0, 2, 1, 3), heads(x, 0, 2, 3, 1), heads(x, 0, 2, 1, 3)
	s := n.Node("Div", []string{n.Node("MatMul", []string{q, k}), n.Scalar(float32(math.Sqrt(float64(size))))})
	s = n.Node("Softmax", []string{n.Node("Add", []string{s, mask})}, onnx.Int("axis", -1))
	y := n.Node("Transpose", []string{n.Node("MatMul", []string{s, v})}, onnx.Ints("perm", 0, 2, 1, 3))
	y = n.Node("Reshape", []string{y, n.Shape(0, 0, c.Hidden)})
	x = n.norm(n.Node("Add", []string{n.linear(y, c.Hidden, c.Hidden), x}), c.Hidden)
	y = n.linear(x, c.Hidden, c.Inner)
	e := n.Node("Add", []string{n.Node("Erf", []string{n.Node("Div", []string{y, n.Scalar(math.Sqrt2)})}), n.Scalar(1)})
	y = n.Node("Mul", []string{n.Node("Mul", []string{y, e}), n.Scalar(0.5)})
	return n.norm(n.Node("Add", []string{n.linear(y, c.Inner, c.Hidden), x}), c.Hidden)
}
