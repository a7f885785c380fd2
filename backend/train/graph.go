package train

import (
	"fmt"
	"math"
	"math/rand/v2"

	"downbeat.dev/backend/onnx"
)

// opset is the version of ONNX's operator set that all graphs here use.
const opset = 13

// value is a tensor within a graph: [batch c h w], or [batch c] when h is 0.
type value struct {
	name    string
	c, h, w int64
}

// param is a weight tensor's place in the flat vector.
type param struct {
	dims      []int64
	offset    int64
	size      int64
	deviation float64 // of the initial values; 0: filled with fill
	fill      float32
}

// graph is a network under construction: for training, where weights are slices of an input, or for inference, where
// they are constants.
type graph struct {
	*onnx.Builder
	weights []float32 // inference: the trained vector; nil in training
	params  []param
	names   []string // training: name of each parameter's slice
	grads   []string // training: name of each parameter's gradient
	flops   int64    // per image: 2 per multiply-accumulate
}

// vectorSize returns the length of the flat vector.
func (g *graph) vectorSize() int64 {
	if len(g.params) == 0 {
		return 0
	}
	last := g.params[len(g.params)-1]
	return last.offset + last.size
}

// allotParam allots a weight tensor and returns its number and its name in the graph.
func (g *graph) allotParam(deviation float64, fill float32, dims ...int64) (int, string) {
	size := int64(1)
	for _, d := range dims {
		size *= d
	}
	p := param{dims: dims, offset: g.vectorSize(), size: size, deviation: deviation, fill: fill}
	i := len(g.params)
	g.params = append(g.params, p)

	// Serving writes the weights as constants; training slices one vector; a sketch only counts them.
	switch {
	case g.weights != nil:
		return i, g.Const(onnx.FloatTensor(fmt.Sprintf("w%d", i), g.weights[p.offset:p.offset+size], dims...))
	case g.names != nil:
		return i, g.names[i]
	}
	return i, fmt.Sprintf("w%d", i)
}

// initialWeights draws starting weights.
func initialWeights(params []param, seed uint64) []float32 {
	// The second word separates this stream from others with the same seed.
	r := rand.New(rand.NewPCG(seed, 0x646f776e62656174))
	var out []float32
	for _, p := range params {
		for range p.size {
			v := p.fill
			if p.deviation > 0 {
				v = float32(p.deviation * r.NormFloat64())
			}
			out = append(out, v)
		}
	}
	return out
}

// heDeviation is He et al.'s initial deviation for layers that end in a ReLU.
func heDeviation(fanIn int64) float64 { return math.Sqrt(2 / float64(fanIn)) }

// cutVector splits the flat input vector into pieces shaped like params.
func (g *graph) cutVector(flat string, params []param) {
	sizes := make([]int64, len(params))
	pieces := make([]string, len(params))
	for i, p := range params {
		sizes[i], pieces[i] = p.size, fmt.Sprintf("flat%d", i)
	}
	g.NodeTo("Split", pieces, []string{flat, g.Shape(sizes...)}, onnx.Int("axis", 0))
	for i, p := range params {
		g.names = append(g.names, g.Node("Reshape", []string{pieces[i], g.Shape(p.dims...)}))
	}
	g.grads = make([]string, len(params))
}

// joinGradients concatenates the gradients of parameters from to to−1 into one vector, in their order.
func (g *graph) joinGradients(from, to int) string {
	flat := make([]string, to-from)
	// Gradients are joined in the order of the weights.
	for i, name := range g.grads[from:to] {
		flat[i] = g.Node("Reshape", []string{name, g.Shape(-1)})
	}
	return g.Node("Concat", flat, onnx.Int("axis", 0))
}

// addImage adds the UINT8 input [batch h w 3] and normalizes it to about zero mean and unit deviation.
func (g *graph) addImage(batch []onnx.Dim, h, w int64) value {
	in := g.Input("image", onnx.Uint8, append(batch, onnx.Fixed(h, w, 3)...))

	// Images are bytes in the order height, width, channel; convolutions need channels first, and numbers near zero.
	x := g.Node("Cast", []string{in}, onnx.Int("to", int64(onnx.Float)))
	x = g.Node("Transpose", []string{x}, onnx.Ints("perm", 0, 3, 1, 2))
	x = g.Node("Mul", []string{g.Node("Sub", []string{x, g.Scalar(100)}), g.Scalar(1.0 / 60)})
	return value{x, 3, h, w}
}
