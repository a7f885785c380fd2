package train

import "downbeat.dev/backend/onnx"

// Head interprets a network's raw output: it defines the loss in training and the outputs when serving.
type Head interface {
	// target returns the dims of one image's training target for raw output y.
	target(y value) []int64
	// loss writes the mean loss per image and its gradient with respect to the raw output.
	loss(g *graph, y value, target string, batch int64) (loss, dy string)
	// outputs writes the serving graph's outputs; suffix is appended to their names.
	outputs(g *graph, y value, suffix string)
}

// Classes is a softmax over N classes. Target: [N], shares that sum to 1. Output "scores": FP32
// [batch N], probabilities.
type Classes struct{ N int64 }

func (h Classes) target(value) []int64 { return []int64{h.N} }

func (h Classes) loss(g *graph, y value, target string, batch int64) (loss, dy string) {
	logp := g.Node("LogSoftmax", []string{y.name}, onnx.Int("axis", 1))
	inv := g.Scalar(1 / float32(batch))
	loss = g.Node("Mul", []string{g.Node("Neg", []string{sumOf(g, g.Node("Mul", []string{target, logp}))}), inv})
	dy = g.Node("Mul", []string{g.Node("Sub", []string{g.Node("Exp", []string{logp}), target}), inv})
	return loss, dy
}

func (h Classes) outputs(g *graph, y value, suffix string) {
	p := g.Node("Softmax", []string{y.name}, onnx.Int("axis", 1))
	g.Output("scores"+suffix, p, onnx.Float, onnx.Batched(h.N))
}

// Grid is a one-box-per-cell detector after YOLO's first version. The raw output has 5+N channels
// per cell: one for objectness, N for the class, four for the box (centre as a share of the cell,
// log of width and height as shares of the image).
//
// Target: [6+N rows cols]: the raw channels' truth, then the weight of the cell's objectness
// (0: do not care). Class and box count only where the objectness is 1.
//
// Outputs: "boxes" FP32 [batch rows·cols 4], corners x0 y0 x1 y1 as shares of the image, and
// "scores" FP32 [batch rows·cols N], objectness times class probability.
type Grid struct{ N int64 }

// Weights of the parts of Grid's loss.
const (
	classWeight = 1.0
	boxWeight   = 3.0
)

func (h Grid) target(y value) []int64 { return []int64{h.N + 6, y.h, y.w} }

func (h Grid) loss(g *graph, y value, target string, batch int64) (loss, dy string) {
	split := func(name string, sizes ...int64) []string {
		out := make([]string, len(sizes))
		for i := range sizes {
			out[i] = y.name + "/" + name + string(rune('a'+i)) // every exit slices the target separately
		}
		g.NodeTo("Split", out, []string{name, g.Shape(sizes...)}, onnx.Int("axis", 1))
		return out
	}

	// The target's channels: a mask of cells with an object, its class, its box, and the weight of the cell.
	raw := split(y.name, 1, h.N, 4)
	truth := split(target, 1, h.N, 4, 1)
	mask, inv := truth[0], g.Scalar(1/float32(batch))
	mul := func(a, b string) string { return g.Node("Mul", []string{a, b}) }
	sub := func(a, b string) string { return g.Node("Sub", []string{a, b}) }

	// Objectness: softplus(o) − t·o, whose gradient is σ(o) − t.
	object := mul(truth[3], sub(g.Node("Softplus", []string{raw[0]}), mul(mask, raw[0])))
	dObject := mul(truth[3], sub(g.Node("Sigmoid", []string{raw[0]}), mask))

	logp := g.Node("LogSoftmax", []string{raw[1]}, onnx.Int("axis", 1))
	class := mul(truth[1], logp)
	dClass := mul(mul(mask, sub(g.Node("Exp", []string{logp}), truth[1])), g.Scalar(classWeight))

	// Box: Huber's loss c·(d − c/2) with c = clip(d, −1, 1), whose gradient is c.
	d := sub(raw[2], truth[2])
	clip := g.Node("Clip", []string{d, g.Scalar(-1), g.Scalar(1)})
	box := mul(mask, mul(clip, sub(d, mul(clip, g.Scalar(0.5)))))
	dBox := mul(mul(mask, clip), g.Scalar(boxWeight))

	// The loss is a mean over the batch, so the rate does not depend on the batch size.
	total := g.Node("Sub", []string{sumOf(g, object), mul(sumOf(g, class), g.Scalar(classWeight))})
	total = g.Node("Add", []string{total, mul(sumOf(g, box), g.Scalar(boxWeight))})
	dy = g.Node("Concat", []string{dObject, dClass, dBox}, onnx.Int("axis", 1))
	return mul(total, inv), mul(dy, inv)
}

func sumOf(g *graph, x string) string {
	return g.Node("ReduceSum", []string{x}, onnx.Int("keepdims", 0))
}

func (h Grid) outputs(g *graph, y value, suffix string) {
	cells := y.h * y.w
	flat := g.Node("Reshape", []string{y.name, g.Shape(-1, h.N+5, cells)})
	flat = g.Node("Transpose", []string{flat}, onnx.Ints("perm", 0, 2, 1))
	raw := []string{"objectness" + suffix, "class" + suffix, "centre" + suffix, "size" + suffix}
	g.NodeTo("Split", raw, []string{flat, g.Shape(1, h.N, 2, 2)}, onnx.Int("axis", 2))

	// A score is the probability of an object, times that of its class.
	p := g.Node("Mul", []string{g.Node("Sigmoid", raw[:1]), g.Node("Softmax", raw[1:2], onnx.Int("axis", 2))})
	g.Output("scores"+suffix, p, onnx.Float, onnx.Batched(cells, h.N))

	var corner []float32 // of each cell, in cells
	for i := range cells {
		corner = append(corner, float32(i%y.w), float32(i/y.w))
	}
	at := g.Const(onnx.FloatTensor("cells"+suffix, corner, 1, cells, 2))
	step := g.Const(onnx.FloatTensor("step"+suffix, []float32{1 / float32(y.w), 1 / float32(y.h)}, 2))

	// Raw centers are relative to their cell and sizes are logarithms; answers are corners, as shares of the image.
	centre := g.Node("Mul", []string{g.Node("Add", []string{raw[2], at}), step})
	half := g.Node("Mul", []string{g.Node("Exp", []string{raw[3]}), g.Scalar(0.5)})
	boxes := g.Node("Concat", []string{g.Node("Sub", []string{centre, half}), g.Node("Add", []string{centre, half})}, onnx.Int("axis", 2))
	boxes = g.Node("Clip", []string{boxes, g.Scalar(0), g.Scalar(1)})
	g.Output("boxes"+suffix, boxes, onnx.Float, onnx.Batched(cells, 4))
}
