package layers

import (
	"slices"

	"downbeat.dev/cuda/kernels"
)

// followHeads follows a value back to the tensor that was split into heads: x → Reshape [.,.,heads,size] → Transpose.
func (r *rewriter) followHeads(value string, perm ...int64) (x string, heads, size int64, all []int) {
	// The transposition brings heads before rows …
	t := r.soleProducer(value, "Transpose")
	if t < 0 || !slices.Equal(r.nodes[t].Attrs["perm"].Ints, perm) {
		return "", 0, 0, nil
	}

	// … of a tensor that was split into heads of a known size.
	s := r.soleProducer(r.nodes[t].Inputs[0], "Reshape")
	if s < 0 || len(r.nodes[s].Inputs) != 2 {
		return "", 0, 0, nil
	}

	shape := r.shapes[r.nodes[s].Inputs[1]]
	if len(shape) != 4 || shape[2] < 1 || shape[3] < 1 || shape[3] > kernels.AttentionSizeMax {
		return "", 0, 0, nil
	}
	return r.nodes[s].Inputs[0], shape[2], shape[3], []int{t, s}
}

// followScores follows softmax's input back to the product, the mask if one is added, and the scale.
func (r *rewriter) followScores(value string) (product int, mask string, scale float64, all []int) {
	scale = 1

	// A mask may be added to the product, from either side.
	if add := r.soleProducer(value, "Add"); add >= 0 {
		for _, in := range r.nodes[add].Inputs {
			if max(r.soleProducer(in, "Div"), r.soleProducer(in, "Mul"), r.soleProducer(in, "MatMul")) >= 0 {
				if _, _, _, ok := r.followScores(in); ok != nil {
					value, mask = in, r.otherInput(add, in)
					break
				}
			}
		}
		all = append(all, add)
	}

	// The scale may be a factor or a divisor.
	if i := max(r.soleProducer(value, "Div"), r.soleProducer(value, "Mul")); i >= 0 {
		v, c, ok := r.scalarBeside(i)
		if !ok || c == 0 {
			return -1, "", 0, nil
		}
		if scale = c; r.nodes[i].Op == "Div" {
			scale = 1 / c
		}
		value, all = v, append(all, i)
	}

	if product = r.soleProducer(value, "MatMul"); product < 0 || len(r.nodes[product].Inputs) != 2 {
		return -1, "", 0, nil
	}
	return product, mask, scale, append(all, product)
}

// rewriteAttention recognises softmax(Q·Kᵀ·scale + mask)·V of heads, reshaped back to [B,S,heads,size].
func (r *rewriter) rewriteAttention(softmax int, opset int64) {
	// The softmax is over the last axis; before opset 13 the default was another one.
	n := &r.nodes[softmax]
	a, ok := n.Attrs["axis"]
	if len(n.Inputs) != 1 || len(n.Outputs) != 1 || ok && a.Int != -1 && a.Int != 3 || !ok && opset < 13 {
		return
	}

	product, mask, scale, all := r.followScores(n.Inputs[0])
	if all == nil {
		return
	}

	// Q, K and V must come from the same reshape and transposition, with equal numbers and sizes of heads.
	q, heads, size, qs := r.followHeads(r.nodes[product].Inputs[0], 0, 2, 1, 3)
	k, kHeads, kSize, ks := r.followHeads(r.nodes[product].Inputs[1], 0, 2, 3, 1)
	second := r.nextNode(softmax, "MatMul")
	if qs == nil || ks == nil || second < 0 || r.nodes[second].Inputs[0] != n.Outputs[0] {
		return
	}

	// The second product weighs V, and its heads are put side by side again.
	v, vHeads, vSize, vs := r.followHeads(r.nodes[second].Inputs[1], 0, 2, 1, 3)
	last := r.nextNode(second, "Transpose")
	if vs == nil || last < 0 || !slices.Equal(r.nodes[last].Attrs["perm"].Ints, []int64{0, 2, 1, 3}) || heads != kHeads || heads != vHeads || size != kSize || size != vSize {
		return
	}

	all = slices.Concat(all, qs, ks, vs, []int{softmax, second, last})
	attention := Node{Name: n.Name, Op: opAttention, Inputs: []string{q, k, v, mask}, Outputs: r.nodes[last].Outputs,
		Attrs: map[string]Attr{"heads": {Int: heads}, "size": {Int: size}, "scale": {Float: float32(scale)}}}

	// If all three are linear in one input, one product computes them.
	if linears, gone, ok := r.joinLinears(attention.Outputs[0]+"/joined", q, k, v); ok {
		attention.Inputs = []string{linears.Outputs[0], mask}
		r.replaceNodes(last, []Node{linears, attention}, append(all, gone...)...)
		return
	}
	r.replaceNodes(last, []Node{attention}, all...)
}

// joinLinears joins values that are x·W + b of the same x, with initialisers of the same shape.
func (r *rewriter) joinLinears(out string, values ...string) (n Node, all []int, ok bool) {
	n = Node{Name: out, Op: opLinears, Outputs: []string{out}, Inputs: []string{""}}

	for _, v := range values {
		add := r.soleProducer(v, "Add")
		if add < 0 || len(r.nodes[add].Inputs) != 2 {
			return n, nil, false
		}

		// The bias may be on either side of the addition.
		p, b := r.soleProducer(r.nodes[add].Inputs[0], "MatMul"), r.nodes[add].Inputs[1]
		if p < 0 {
			p, b = r.soleProducer(r.nodes[add].Inputs[1], "MatMul"), r.nodes[add].Inputs[0]
		}
		if p < 0 || len(r.nodes[p].Inputs) != 2 {
			return n, nil, false
		}

		x, w := r.nodes[p].Inputs[0], r.nodes[p].Inputs[1]
		cw, cb := r.weights[w], r.weights[b]

		// Joinable weights are initialisers that multiply the same input.
		if cw == nil || cb == nil || len(cw.Dims) != 2 || len(cb.Dims) != 1 || cb.Dims[0] != cw.Dims[1] || n.Inputs[0] != "" && n.Inputs[0] != x {
			return n, nil, false
		}

		n.Inputs[0] = x
		n.Inputs = append(n.Inputs, w, b)
		all = append(all, add, p)
	}

	// Joined weights lie side by side, so they must have one shape.
	first := r.weights[n.Inputs[1]]
	for i := 3; i < len(n.Inputs); i += 2 {
		if !slices.Equal(r.weights[n.Inputs[i]].Dims, first.Dims) {
			return n, nil, false
		}
	}
	return n, all, true
}
