package train

import (
	"fmt"
	"slices"

	"downbeat.dev/backend/onnx"
)

// Net is a network: UINT8 images [H W 3] are the input, Body processes them, and Head interprets the result. Exits
// answer earlier.
type Net struct {
	Name  string
	H, W  int64
	Body  []Layer
	Head  Head
	Exits []Exit
}

// Cost is the cost of one image.
type Cost struct {
	FLOP    int64 // two per multiply-accumulate of convolutions and dense layers
	Weights int64
}

// Cost computes the cost without running anything.
func (n Net) Cost() Cost {
	// The sketch counts while it builds, and needs no weights.
	g, _ := n.sketchForward()
	return Cost{FLOP: g.flops, Weights: g.vectorSize()}
}

// sketchForward writes the forward pass only to determine its parameters and shapes.
func (n Net) sketchForward() (*graph, value) {
	g := &graph{Builder: onnx.NewBuilder(n.Name)}
	return g, n.forward(g, onnx.Batched())
}

func (n Net) forward(g *graph, batch []onnx.Dim) value { return n.forwardAll(g, batch).y }

// passed is the result of a forward pass.
type passed struct {
	y           value
	penultimate value   // input of the last layer
	exits       []value // by exit
}

func (n Net) forwardAll(g *graph, batch []onnx.Dim) (p passed) {
	p.y = g.addImage(batch, n.H, n.W)
	var after []value // output of each layer
	for _, l := range n.Body {
		p.penultimate = p.y
		p.y = l.forward(g, p.y)
		after = append(after, p.y)
	}

	// Heads come last, so that the body's parameters have the same places as without exits.
	for _, e := range n.Exits {
		p.exits = append(p.exits, e.forward(g, after[e.After-1]))
	}
	return p
}

// TargetLen returns the number of floats in one image's training target.
func (n Net) TargetLen() int {
	_, y := n.sketchForward()
	size := int64(1)
	for _, d := range n.Head.target(y) {
		size *= d
	}
	return int(size)
}

// Serving writes the inference graph with the given weights; the batch dimension is open.
func (n Net) Serving(weights []float32) (*onnx.Model, error) {
	if err := n.checkWeights(weights); err != nil {
		return nil, err
	}
	g := &graph{Builder: onnx.NewBuilder(n.Name), weights: weights}
	n.writeOutputs(g, n.forwardAll(g, onnx.Batched()))
	return g.Model(opset)
}

// Probing writes the inference graph with one more output: "features" FP32 [batch n], the input of the last layer. Of
// a map it has only each channel's mean, so that positions do not matter.
func (n Net) Probing(weights []float32) (*onnx.Model, error) {
	if err := n.checkWeights(weights); err != nil {
		return nil, err
	}
	g := &graph{Builder: onnx.NewBuilder(n.Name), weights: weights}
	p := n.forwardAll(g, onnx.Batched())
	n.writeOutputs(g, p)

	x := p.penultimate
	name := x.name

	// Features of a map are its means over all positions, so that every net returns a vector.
	if x.h > 0 {
		name = g.Node("ReduceMean", []string{name}, onnx.Ints("axes", 2, 3), onnx.Int("keepdims", 0))
	}
	g.Output("features", name, onnx.Float, onnx.Batched(x.c))
	return g.Model(opset)
}

// checkWeights returns an error if weights do not fit this net.
func (n Net) checkWeights(weights []float32) error {
	if err := n.checkExits(); err != nil {
		return err
	}
	if want := n.Cost().Weights; int64(len(weights)) != want {
		return fmt.Errorf("net %s: %d weights: want %d", n.Name, len(weights), want)
	}
	return nil
}

// ReadWeights returns the flat vector of a graph that Serving wrote for a net of this shape.
func (n Net) ReadWeights(m *onnx.Model) ([]float32, error) {
	sketch, _ := n.sketchForward()
	weights := make([]float32, 0, sketch.vectorSize())

	// Serving writes each parameter as a separate constant, in the order of the vector.
	for i, p := range sketch.params {
		name := fmt.Sprintf("w%d", i)
		t := m.Graph.Initializer(name)
		if t == nil || !slices.Equal(t.Dims, p.dims) {
			return nil, fmt.Errorf("net %s: the graph %s has no tensor %s of shape %v: it is no graph of this net", n.Name, m.Graph.Name, name, p.dims)
		}
		piece, err := t.Floats()
		if err != nil {
			return nil, fmt.Errorf("net %s: %w", n.Name, err)
		}
		weights = append(weights, piece...)
	}

	if sketch.vectorSize() == 0 {
		return nil, fmt.Errorf("net %s: no layer of it has weights: it cannot be trained", n.Name)
	}

	return weights, nil
}

// Training writes the graph of one training step on a batch of images, and returns it with the weights to start from.
// Inputs: image, target, the flat vectors weights, moment1 and moment2, and the rate, which is Optimiser.CorrectedRate.
// Outputs: loss [1] and the new three vectors, named as the old ones with ".new". No dimension is open.
func (n Net) Training(o Options) (*onnx.Model, []float32, error) {
	if o.Batch < 1 || o.Batch > 4096 {
		return nil, nil, fmt.Errorf("batch: %d: want 1 to 4096", o.Batch)
	}

	want := wholeStep
	if o.HeadsOnly {
		if want = headsStep; len(n.Exits) == 0 {
			return nil, nil, fmt.Errorf("net %s: heads only: it has no exits", n.Name)
		}
	}

	m, params, err := n.buildTraining(int64(o.Batch), o.Optimiser.stepRuleOf(), want)
	if err != nil {
		return nil, nil, err
	}

	weights := o.Weights
	if weights == nil {
		weights = initialWeights(params, o.Seed)
	}

	if want := n.Cost().Weights; int64(len(weights)) != want {
		return nil, nil, fmt.Errorf("weights: %d numbers: the net %s takes %d", len(weights), n.Name, want)
	}
	return m, weights, nil
}

// buildTraining writes forward and backward pass and the optimiser's step for a fixed batch size.
// Inputs: image, target, weights, moment1, moment2, rate. Outputs: loss and the new three vectors,
// or, to check gradients, "gradient" instead of the vectors.
func (n Net) buildTraining(batch int64, step stepRule, want trainingOf) (*onnx.Model, []param, error) {
	if err := n.checkExits(); err != nil {
		return nil, nil, err
	}
	sketch, _ := n.sketchForward()
	g := &graph{Builder: onnx.NewBuilder(n.Name + ".training")}
	size := sketch.vectorSize()
	flat := g.Input("weights", onnx.Float, onnx.Fixed(size))

	g.cutVector(flat, sketch.params)
	p := n.forwardAll(g, onnx.Fixed(batch))
	target := g.Input("target", onnx.Float, onnx.Fixed(append([]int64{batch}, n.Head.target(p.y)...)...))

	// Backwards, layer by layer; the first one needs no gradient of its input.
	loss, dy := n.Head.loss(g, p.y, target, batch)
	for i := len(n.Body) - 1; i >= 0 && want != headsStep; i-- {
		dy = n.Body[i].backward(g, dy, i == 0)
	}
	loss = n.backwardExits(g, p.exits, loss, target, batch)

	g.Output("loss", g.Node("Reshape", []string{loss, g.Shape(1)}), onnx.Float, onnx.Fixed(1))

	// Without a step the graph returns the gradient, for the check against differences.
	if want == gradientOnly {
		g.Output("gradient", g.joinGradients(0, len(g.grads)), onnx.Float, onnx.Fixed(size))
	} else {
		n.writeStep(g, step, flat, want == headsStep)
	}

	m, err := g.Model(opset)
	return m, sketch.params, err
}

// trainingOf is the purpose of a training graph.
type trainingOf uint8

const (
	wholeStep    trainingOf = iota // all weights
	headsStep                      // the exits' heads
	gradientOnly                   // no step
)

// writeStep writes the optimiser's step, and the new vectors as outputs.
func (n Net) writeStep(g *graph, step stepRule, flat string, headsOnly bool) {
	size := g.vectorSize()
	m1 := g.Input("moment1", onnx.Float, onnx.Fixed(size))
	m2 := g.Input("moment2", onnx.Float, onnx.Fixed(size))
	rate := g.Input("rate", onnx.Float, onnx.Fixed(1))

	old := [3]string{flat, m1, m2}
	fresh := old
	if headsOnly {
		fresh = n.stepHeads(g, step, old, rate)
	} else {
		fresh[0], fresh[1], fresh[2] = step(g, flat, n.clipParts(g, 0), m1, m2, rate)
	}
	for i, v := range fresh {
		g.Output(vectors[i]+".new", v, onnx.Float, onnx.Fixed(size))
	}
}

// vectors are the flat inputs that a step updates.
var vectors = [3]string{"weights", "moment1", "moment2"}

// Options of a Stepper.
type Options struct {
	Batch     int
	Weights   []float32 // initial weights; nil: drawn from Seed
	Seed      uint64
	Optimiser Optimiser
	Library   string // ONNX Runtime; "": the result of ort.Library
	// HeadsOnly trains only the weights of the exits' heads, and keeps those of the body.
	HeadsOnly bool
}
