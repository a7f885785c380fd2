package layers

import (
	"math"
	"slices"

	"downbeat.dev/cuda/kernels"
)

// Exporters write attention and Gelu as a dozen operators each. Before compilation, rewrite replaces the patterns
// that it recognises by one node; all other forms stay unchanged.

const (
	opAttention = "downbeat.Attention" // Q, K, V [B,S,heads·size] and mask; or one tensor with Q, K and V side by side, and mask
	opLinears   = "downbeat.Linears"   // x, then weights and bias of each part in turn; the results x·W + b lie side by side
)

// rewriter holds a graph while nodes are replaced. The index −1 means no node.
type rewriter struct {
	nodes   []Node
	by      map[string]int   // the node that computes a value
	users   map[string][]int // the nodes that read it
	ends    map[string]bool
	scalars map[string]float64
	shapes  map[string][]int64
	weights map[string]*Constant
	gone    []bool
	instead map[int][]Node // by the last node that each replaces
}

func rewriteGraph(g *Graph) *Graph {
	r := &rewriter{nodes: g.Nodes, by: map[string]int{}, users: map[string][]int{}, ends: map[string]bool{}, scalars: map[string]float64{},
		shapes: map[string][]int64{}, weights: map[string]*Constant{}, gone: make([]bool, len(g.Nodes)), instead: map[int][]Node{}}

	r.indexNodes(g)
	for i := range r.nodes {
		switch r.nodes[i].Op {
		case "Erf":
			r.rewriteGelu(i)
		case "Softmax":
			r.rewriteAttention(i, g.Opset)
		}
	}

	if len(r.instead) == 0 {
		return g
	}

	// The nodes of a pattern are removed, and the replacement takes the place of the last one, which keeps the order
	// valid.
	out := *g
	out.Nodes = nil
	for i := range r.nodes {
		out.Nodes = append(out.Nodes, r.instead[i]...)
		if !r.gone[i] {
			out.Nodes = append(out.Nodes, r.nodes[i])
		}
	}
	return &out
}

func (r *rewriter) indexNodes(g *Graph) {
	// Three uses of a constant: a scalar in a pattern, a shape for a Reshape, and weights that can be joined.
	constant := func(name string, c *Constant) {
		if n, err := Elements(c.Dims); err != nil || len(c.Data) != n*c.Type.Size() {
			return
		}
		switch {
		case c.Type == Float32 && len(c.Data) == 4:
			r.scalars[name] = float64(floatsOf(c.Data)[0])
		case c.Type == Int64 && len(c.Dims) == 1:
			r.shapes[name] = intsOf(c.Data)
		case c.Type == Float32:
			r.weights[name] = c
		}
	}

	for i := range g.Constants {
		constant(g.Constants[i].Name, &g.Constants[i])
	}

	for i := range g.Nodes {
		n := &g.Nodes[i]
		if t := n.Attrs["value"].Tensor; n.Op == "Constant" && t != nil && len(n.Outputs) == 1 {
			constant(n.Outputs[0], t)
			delete(r.weights, n.Outputs[0]) // only initialisers have a name that is the same for all batches
		}
		for _, in := range n.Inputs {
			r.users[in] = append(r.users[in], i)
		}
		for _, out := range n.Outputs {
			r.by[out] = i
		}
	}

	for _, o := range g.Outputs {
		r.ends[o] = true
	}
}

// soleProducer returns the node that computes a value, if it has that operator and is the value's only use.
func (r *rewriter) soleProducer(value, op string) int {
	i, ok := r.by[value]
	if !ok || r.nodes[i].Op != op || len(r.nodes[i].Outputs) != 1 || len(r.users[value]) != 1 || r.ends[value] || r.gone[i] {
		return -1
	}
	return i
}

// nextNode returns the only node that reads node i's result, if it has that operator.
func (r *rewriter) nextNode(i int, op string) int {
	out := r.nodes[i].Outputs[0]
	if u := r.users[out]; len(u) == 1 && !r.ends[out] && r.nodes[u[0]].Op == op && len(r.nodes[u[0]].Outputs) == 1 && !r.gone[u[0]] {
		return u[0]
	}
	return -1
}

// otherInput returns the other input of a node with two inputs.
func (r *rewriter) otherInput(i int, value string) string {
	in := r.nodes[i].Inputs
	if len(in) != 2 {
		return ""
	}
	if in[0] == value {
		return in[1]
	}
	return in[0]
}

// scalarBeside returns the constant operand of a node with two inputs, and the other input.
func (r *rewriter) scalarBeside(i int) (value string, c float64, ok bool) {
	in := r.nodes[i].Inputs
	if len(in) != 2 {
		return "", 0, false
	}
	if c, ok = r.scalars[in[1]]; ok {
		return in[0], c, true
	}

	// A constant divided by a value is not the same function as a value divided by a constant.
	c, ok = r.scalars[in[0]]
	return in[1], c, ok && r.nodes[i].Op != "Div"
}

func isNear(a, b float64) bool { return math.Abs(a-b) < 1e-3*b }

func (r *rewriter) replaceNodes(last int, fresh []Node, all ...int) {
	for _, i := range all {
		r.gone[i] = true
	}
	r.instead[last] = fresh
}

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

	r.replaceNodes(last, []Node{{Name: r.nodes[last].Name, Op: "Gelu", Inputs: []string{x}, Outputs: r.nodes[last].Outputs}}, all...)
}

// followHeads follows a value back to the tensor that was split into heads: x → Reshape [.,.,heads,size] → Transpose.
func (r *rewriter) followHeads(value string, perm ...int64) (x string, heads, size int64, all []int) {
	t := r.soleProducer(value, "Transpose")
	if t < 0 || !slices.Equal(r.nodes[t].Attrs["perm"].Ints, perm) {
		return "", 0, 0, nil
	}

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

	v, vHeads, vSize, vs := r.followHeads(r.nodes[second].Inputs[1], 0, 2, 1, 3)
	last := r.nextNode(second, "Transpose")
	if vs == nil || last < 0 || !slices.Equal(r.nodes[last].Attrs["perm"].Ints, []int64{0, 2, 1, 3}) || heads != kHeads || heads != vHeads || size != kSize || size != vSize {
		return
	}

	all = slices.Concat(all, qs, ks, vs, []int{softmax, second, last})
	node := Node{Name: n.Name, Op: opAttention, Inputs: []string{q, k, v, mask}, Outputs: r.nodes[last].Outputs,
		Attrs: map[string]Attr{"heads": {Int: heads}, "size": {Int: size}, "scale": {Float: float32(scale)}}}

	fresh := []Node{node}

	// If all three are linear in one input, one product computes them.
	if linears, gone, ok := r.joinLinears(node.Outputs[0]+"/joined", q, k, v); ok {
		fresh[0].Inputs = []string{linears.Outputs[0], mask}
		fresh, all = []Node{linears, fresh[0]}, append(all, gone...)
	}

	r.replaceNodes(last, fresh, all...)
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
