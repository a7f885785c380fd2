package train

import (
	"fmt"
	"slices"

	"downbeat.dev/backend/onnx"
)

// Exit is an early exit (AdaInf §2.2): a separate head after the first After layers of a net's body, which answers as
// the net's Head does, sooner and less accurately. Its head learns from the body's features, and the body learns
// nothing from it: exits do not change a net's own answers.
type Exit struct {
	After int     // number of the net's Body layers before it, from 1 to all but one
	Body  []Layer // of the head; the last one's output has the shape of the net's
}

// ExitNet returns exit k, from 1, as a separate net, for its cost.
func (n Net) ExitNet(k int) Net {
	e := n.Exits[k-1]
	return Net{Name: n.Name + ExitSuffix(k), H: n.H, W: n.W, Body: slices.Concat(n.Body[:e.After], e.Body), Head: n.Head}
}

// ExitSuffix is the suffix of the names of exit k's outputs, from 1.
func ExitSuffix(k int) string { return onnx.ExitSuffix(k) }

func (e Exit) forward(g *graph, x value) value {
	for _, l := range e.Body {
		x = l.forward(g, x)
	}
	return x
}

// checkExits returns an error for invalid exits.
func (n Net) checkExits() error {
	trunk := n
	trunk.Exits = nil
	for i, e := range n.Exits {
		if e.After < 1 || e.After >= len(n.Body) || len(e.Body) == 0 {
			return fmt.Errorf("net %s: exit %d: after %d layers with a head of %d: want after 1 to %d, and a head", n.Name, i+1, e.After, len(e.Body), len(n.Body)-1)
		}

		// All heads share one target, so all must answer in the same form.
		_, whole := trunk.sketchForward()
		_, y := n.ExitNet(i + 1).sketchForward()
		if y.c != whole.c || y.h != whole.h || y.w != whole.w {
			return fmt.Errorf("net %s: exit %d answers with [%d %d %d]: the net with [%d %d %d]", n.Name, i+1, y.c, y.h, y.w, whole.c, whole.h, whole.w)
		}
	}
	return nil
}

// writeOutputs writes the outputs of the net and of its exits.
func (n Net) writeOutputs(g *graph, p passed) {
	n.Head.outputs(g, p.y, "")
	// The net's own outputs keep their names, so that it runs as before.
	for i, y := range p.exits {
		n.Head.outputs(g, y, ExitSuffix(i+1))
	}
}

// backwardExits writes the exits' backward passes, which end at the first layers of the heads, and returns the sum of
// the losses.
func (n Net) backwardExits(g *graph, exits []value, loss, target string, batch int64) string {
	for i, y := range exits {
		own, dy := n.Head.loss(g, y, target, batch)
		loss = g.Node("Add", []string{loss, own})

		// The head's first layer passes no gradient on: the body belongs to the whole net.
		head := n.Exits[i].Body
		for k := len(head) - 1; k >= 0; k-- {
			dy = head[k].backward(g, dy, k == 0)
		}
	}
	return loss
}

// partsOf returns where the parameters of the body and of each exit's head begin, and the end of the last.
func (n Net) partsOf() (first []int) {
	trunk := n
	for k := range len(n.Exits) + 1 {
		trunk.Exits = n.Exits[:k]
		sketch, _ := trunk.sketchForward()
		first = append(first, len(sketch.params))
	}
	return append([]int{0}, first...)
}

// clipParts joins the gradients of the body, unless from is 1, and of each head. Each is clipped separately: a head
// with a long gradient must not slow down the others.
func (n Net) clipParts(g *graph, from int) string {
	parts := n.partsOf()
	var clipped []string
	for k := from; k+1 < len(parts); k++ {
		clipped = append(clipped, clipNorm(g, g.joinGradients(parts[k], parts[k+1])))
	}
	if len(clipped) == 1 {
		return clipped[0]
	}
	return g.Node("Concat", clipped, onnx.Int("axis", 0))
}

// stepHeads writes a step of the heads' part of weights and moments, and returns the vectors with the body's part
// unchanged.
func (n Net) stepHeads(g *graph, step stepRule, old [3]string, rate string) (fresh [3]string) {
	trunk := n
	trunk.Exits = nil
	body := trunk.Cost().Weights
	var kept, heads [3]string
	for i, v := range old {
		kept[i], heads[i] = vectors[i]+".body", vectors[i]+".heads"
		g.NodeTo("Split", []string{kept[i], heads[i]}, []string{v, g.Shape(body, g.vectorSize()-body)}, onnx.Int("axis", 0))
	}

	heads[0], heads[1], heads[2] = step(g, heads[0], n.clipParts(g, 1), heads[1], heads[2], rate)
	for i := range fresh {
		fresh[i] = g.Node("Concat", []string{kept[i], heads[i]}, onnx.Int("axis", 0))
	}
	return fresh
}

// ExtendWeights returns body, the weights of the net without exits, followed by the initial weights of its exits'
// heads.
func (n Net) ExtendWeights(body []float32, seed uint64) ([]float32, error) {
	trunk := n
	trunk.Exits = nil
	if err := trunk.checkWeights(body); err != nil {
		return nil, err
	}
	if err := n.checkExits(); err != nil {
		return nil, err
	}

	// Discard the body's part of the drawn weights: the heads' part depends on the seed alone.
	sketch, _ := n.sketchForward()
	all := initialWeights(sketch.params, seed)
	copy(all, body)
	return all, nil
}
