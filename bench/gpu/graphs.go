package gpu

import (
	"fmt"
	"math"
	"math/rand/v2"

	"downbeat.dev/backend/onnx"
)

// net builds graphs with random weights. Channel counts are used as given, without a multiplier.
type net struct {
	*onnx.Builder
	rng *rand.Rand
}

func newNet(name string, seed uint64) *net {
	return &net{onnx.NewBuilder(name), rand.New(rand.NewPCG(seed, 42))}
}

// addWeights adds normal weights with a deviation that keeps activations near one.
func (n *net) addWeights(fan int, dims ...int64) string {
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

// addAround adds numbers near mean.
func (n *net) addAround(mean, spread float64, dims ...int64) string {
	v := make([]float32, dims[0])
	for i := range v {
		v[i] = float32(mean + spread*(2*n.rng.Float64()-1))
	}
	return n.Const(onnx.FloatTensor("", v, dims...))
}

// addConv adds a convolution over k×k with same padding, normalisation and an activation ("" for none).
func (n *net) addConv(x string, in, out, k, stride, groups int64, act string) string {
	p := (k - 1) / 2
	y := n.Node("Conv", []string{x, n.addWeights(int(in/groups*k*k), out, in/groups, k, k)},
		onnx.Ints("kernel_shape", k, k), onnx.Ints("strides", stride, stride), onnx.Ints("pads", p, p, p, p), onnx.Int("group", groups))

	y = n.Node("BatchNormalization", []string{y, n.addAround(1, 0.2, out), n.addAround(0, 0.2, out), n.addAround(0, 0.2, out), n.addAround(1, 0.2, out)},
		onnx.FloatAttr("epsilon", 1e-5))
	return n.addActivation(y, act)
}

func (n *net) addActivation(x, act string) string {
	switch act {
	case "":
		return x
	case "Relu6":
		return n.Node("Clip", []string{x, n.Scalar(0), n.Scalar(6)})
	}
	return n.Node(act, []string{x})
}

func (n *net) buildModel(opset int64) *onnx.Model {
	m, err := n.Model(opset)
	if err != nil {
		panic(fmt.Sprintf("graph of this package: %v", err)) // a mistake in this file
	}
	return m
}

// addHead adds global pooling and a classifier of classes.
func (n *net) addHead(x string, width, classes int64) {
	x = n.Node("GlobalAveragePool", []string{x})
	x = n.Node("Flatten", []string{x}, onnx.Int("axis", 1))
	x = n.Node("Gemm", []string{x, n.addWeights(int(width), classes, width), n.addAround(0, 0.1, classes)}, onnx.Int("transB", 1))
	n.Output("logits", x, onnx.Float, onnx.Batched(classes))
}

// ResNet50 returns the graph of ResNet-50 v1.5 with random weights, for images of size by size.
func ResNet50(size int64, seed uint64) *onnx.Model {
	n := newNet("resnet50", seed)
	x := n.Input("image", onnx.Float, onnx.Batched(3, size, size))
	return n.resNet50(x)
}

// ResNet50Bytes takes raw images: size by size by 3 bytes, 147 KiB for 224.
func ResNet50Bytes(size int64, seed uint64) *onnx.Model {
	n := newNet("resnet50-bytes", seed)
	x := n.Input("image", onnx.Uint8, onnx.Batched(size, size, 3))
	x = n.Node("Mul", []string{n.Node("Cast", []string{x}, onnx.Int("to", 1)), n.Scalar(1.0 / 127)})
	return n.resNet50(n.Node("Transpose", []string{x}, onnx.Ints("perm", 0, 3, 1, 2)))
}

func (n *net) resNet50(x string) *onnx.Model {
	x = n.addConv(x, 3, 64, 7, 2, 1, "Relu")
	x = n.Node("MaxPool", []string{x}, onnx.Ints("kernel_shape", 3, 3), onnx.Ints("strides", 2, 2), onnx.Ints("pads", 1, 1, 1, 1))

	in := int64(64)
	for stage, blocks := range []int{3, 4, 6, 3} {
		mid := int64(64) << stage
		for b := range blocks {
			stride := int64(1)
			if b == 0 && stage > 0 {
				stride = 2
			}

			// A block of 1×1, 3×3 and 1×1; its first one changes the shortcut's size.
			y := n.addConv(x, in, mid, 1, 1, 1, "Relu")
			y = n.addConv(y, mid, mid, 3, stride, 1, "Relu")
			y = n.addConv(y, mid, 4*mid, 1, 1, 1, "")
			if b == 0 {
				x = n.addConv(x, in, 4*mid, 1, stride, 1, "")
			}
			x = n.Node("Relu", []string{n.Node("Add", []string{y, x})})
			in = 4 * mid
		}
	}

	n.addHead(x, in, 1000)
	return n.buildModel(13)
}

// MobileNet returns the graph of MobileNetV2 with random weights, for images of size by size.
func MobileNet(size int64, seed uint64) *onnx.Model {
	n := newNet("mobilenet", seed)
	x := n.Input("image", onnx.Float, onnx.Batched(3, size, size))
	x = n.addConv(x, 3, 32, 3, 2, 1, "Relu6")
	in := int64(32)

	// Expansion, channels, repeats and stride, from the paper's table 2.
	for _, s := range [][4]int64{{1, 16, 1, 1}, {6, 24, 2, 2}, {6, 32, 3, 2}, {6, 64, 4, 2}, {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}} {
		for b := range s[2] {
			stride := int64(1)
			if b == 0 {
				stride = s[3]
			}

			mid, y := in*s[0], x
			if s[0] > 1 {
				y = n.addConv(y, in, mid, 1, 1, 1, "Relu6")
			}
			y = n.addConv(y, mid, mid, 3, stride, mid, "Relu6")
			y = n.addConv(y, mid, s[1], 1, 1, 1, "")

			if stride == 1 && in == s[1] {
				y = n.Node("Add", []string{x, y})
			}
			x, in = y, s[1]
		}
	}

	x = n.addConv(x, in, 1280, 1, 1, 1, "Relu6")
	n.addHead(x, 1280, 1000)
	return n.buildModel(13)
}

// BERTConfig holds the sizes of a BERT-shaped encoder.
type BERTConfig struct{ Layers, Hidden, Heads, Inner, Sequence, Vocabulary int64 }

// BERTBase is BERT-base with sequences of 128 tokens.
var BERTBase = BERTConfig{12, 768, 12, 3072, 128, 30522}

// BERT returns an encoder over token ids and an attention mask of zeros and ones, in the form of exporters.
func BERT(c BERTConfig, seed uint64) *onnx.Model {
	n := newNet("bert", seed)
	ids := n.Input("input_ids", onnx.Int64, onnx.Batched(c.Sequence))
	mask := n.Input("attention_mask", onnx.Int64, onnx.Batched(c.Sequence))

	// The mask becomes an addend: 0 for a token that counts, −10,000 for one that does not, which softmax maps to 0.
	m := n.Node("Cast", []string{mask}, onnx.Int("to", 1))
	m = n.Node("Unsqueeze", []string{m, n.Shape(1, 2)})
	m = n.Node("Mul", []string{n.Node("Sub", []string{n.Scalar(1), m}), n.Scalar(-10000)})

	x := n.Node("Gather", []string{n.addWeights(1, c.Vocabulary, c.Hidden), ids})
	pos := n.addWeights(1, 512, c.Hidden)
	x = n.Node("Add", []string{x, n.Node("Slice", []string{pos, n.Shape(0), n.Shape(c.Sequence), n.Shape(0)})})
	x = n.addNorm(x, c.Hidden)
	for range c.Layers {
		x = n.addEncoder(x, m, c)
	}

	// Only the first token's row reaches the pooled output, as in BERT's classifiers.
	first := n.Node("Gather", []string{x, n.Const(onnx.IntTensor("", []int64{0}))}, onnx.Int("axis", 1))
	pooled := n.Node("Tanh", []string{n.addLinear(first, c.Hidden, c.Hidden)})
	n.Output("pooled", pooled, onnx.Float, onnx.Batched(c.Hidden))
	return n.buildModel(17)
}

func (n *net) addNorm(x string, width int64) string {
	return n.Node("LayerNormalization", []string{x, n.addAround(1, 0.2, width), n.addAround(0, 0.2, width)}, onnx.Int("axis", -1), onnx.FloatAttr("epsilon", 1e-12))
}

func (n *net) addLinear(x string, in, out int64) string {
	return n.Node("Add", []string{n.Node("MatMul", []string{x, n.addWeights(int(in), in, out)}), n.addAround(0, 0.1, out)})
}

func (n *net) addEncoder(x, mask string, c BERTConfig) string {
	size := c.Hidden / c.Heads
	heads := func(y string, perm ...int64) string {
		y = n.Node("Reshape", []string{n.addLinear(y, c.Hidden, c.Hidden), n.Shape(0, 0, c.Heads, size)})
		return n.Node("Transpose", []string{y}, onnx.Ints("perm", perm...))
	}

	// heads transposes K, so that Q·K needs no further step.
	q, k, v := heads(x, 0, 2, 1, 3), heads(x, 0, 2, 3, 1), heads(x, 0, 2, 1, 3)
	s := n.Node("Div", []string{n.Node("MatMul", []string{q, k}), n.Scalar(float32(math.Sqrt(float64(size))))})
	s = n.Node("Softmax", []string{n.Node("Add", []string{s, mask})}, onnx.Int("axis", -1))
	y := n.Node("Transpose", []string{n.Node("MatMul", []string{s, v})}, onnx.Ints("perm", 0, 2, 1, 3))
	y = n.Node("Reshape", []string{y, n.Shape(0, 0, c.Hidden)})
	x = n.addNorm(n.Node("Add", []string{n.addLinear(y, c.Hidden, c.Hidden), x}), c.Hidden)

	y = n.addLinear(x, c.Hidden, c.Inner)

	// GELU by the error function, written out in the form of exporters.
	e := n.Node("Add", []string{n.Node("Erf", []string{n.Node("Div", []string{y, n.Scalar(math.Sqrt2)})}), n.Scalar(1)})
	y = n.Node("Mul", []string{n.Node("Mul", []string{y, e}), n.Scalar(0.5)})
	return n.addNorm(n.Node("Add", []string{n.addLinear(y, c.Inner, c.Hidden), x}), c.Hidden)
}
