package layers

import "math"

// isNear allows for the rounding of an exporter's constants.
func isNear(a, b float64) bool { return math.Abs(a-b) < 1e-3*b }

// rewriteGelu recognises x·(erf(x/√2) + 1)·½ in any order.
func (r *rewriter) rewriteGelu(erf int) {
	// x / √2, or x · 1/√2 …
	scale := -1
	if len(r.nodes[erf].Inputs) == 1 {
		scale = max(r.soleProducer(r.nodes[erf].Inputs[0], "Div"), r.soleProducer(r.nodes[erf].Inputs[0], "Mul"))
	}
	if scale < 0 || len(r.nodes[erf].Outputs) != 1 {
		return
	}

	x, c, ok := r.scalarBeside(scale)
	if want := map[string]float64{"Div": math.Sqrt2, "Mul": 1 / math.Sqrt2}[r.nodes[scale].Op]; !ok || !isNear(c, want) {
		return
	}

	// … of which Erf + 1 …
	plus := r.nextNode(erf, "Add")
	if plus < 0 || r.scalars[r.otherInput(plus, r.nodes[erf].Outputs[0])] != 1 {
		return
	}

	times := r.nextNode(plus, "Mul")
	if times < 0 {
		return
	}

	// … is multiplied by x and by a half, in either order.
	last, all, other := times, []int{scale, erf, plus, times}, r.otherInput(times, r.nodes[plus].Outputs[0])
	if other == x {
		if last = r.nextNode(times, "Mul"); last < 0 || r.scalars[r.otherInput(last, r.nodes[times].Outputs[0])] != 0.5 {
			return
		}
		all = append(all, last)
	} else {
		half := r.soleProducer(other, "Mul")
		if half < 0 {
			return
		}
		if v, c, ok := r.scalarBeside(half); !ok || v != x || c != 0.5 {
			return
		}
		all = append(all, half)
	}

	// The result has the name of the pattern's last value.
	r.replaceNodes(last, []Node{{Name: r.nodes[last].Name, Op: "Gelu", Inputs: []string{x}, Outputs: r.nodes[last].Outputs}}, all...)
}
