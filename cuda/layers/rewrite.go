package layers

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

// rewriteGraph returns a graph with the recognised patterns replaced; g itself if there are none.
func rewriteGraph(g *Graph) *Graph {
	r := &rewriter{nodes: g.Nodes, by: map[string]int{}, users: map[string][]int{}, ends: map[string]bool{}, scalars: map[string]float64{},
		shapes: map[string][]int64{}, weights: map[string]*Constant{}, gone: make([]bool, len(g.Nodes)), instead: map[int][]Node{}}

	// Each pattern is found from the one operator that nothing else in it has.
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

// indexNodes fills the tables: who computes a value, who reads it, and which values are constants.
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

	// Constants may also be nodes.
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

	// A value that the graph returns must not disappear in a pattern.
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

// replaceNodes replaces all by fresh nodes, which take the place of the last.
func (r *rewriter) replaceNodes(last int, fresh []Node, all ...int) {
	for _, i := range all {
		r.gone[i] = true
	}
	r.instead[last] = fresh
}
