package layers

import (
	"fmt"
	"slices"
	"strings"

	"downbeat.dev/cuda"
	"downbeat.dev/cuda/kernels"
)

// BatchMax bounds the batch size of a plan.
const BatchMax = 4096

// compiler builds one plan.
type compiler struct {
	g         *Graph
	precision Precision
	batch     int
	batched   bool // some input has a batch dimension
	plan      *Plan
	values    map[string]*tensor
	users     map[string][]int // the nodes that read each value
	ends      map[string]bool  // the graph's outputs
	params    map[string]int   // parameters by name
	done      []bool           // nodes that are lowered or fused
	layer     *Layer           // the layer being built
	node      *Node
	wide      map[string]*tensor // outputs of the graph in half precision, as float32
}

// Compile creates the plan of g for a batch size and a precision. Only one goroutine at a time may compile a graph.
func Compile(g *Graph, batch int, precision Precision) (*Plan, error) {
	if batch < 1 || batch > BatchMax {
		return nil, fmt.Errorf("compile %q: batch %d: must be 1 to %d", g.Name, batch, BatchMax)
	}
	if precision > BF16 {
		return nil, fmt.Errorf("compile %q: %v", g.Name, precision)
	}

	// Plans for other batch sizes share values derived from constants.
	if g.derived == nil {
		g.derived = map[string][]byte{}
	}

	c := &compiler{g: rewriteGraph(g), precision: precision, batch: batch, plan: &Plan{Batch: batch, Precision: precision}, values: map[string]*tensor{},
		users: map[string][]int{}, ends: map[string]bool{}, params: map[string]int{}, wide: map[string]*tensor{}}

	c.done = make([]bool, len(c.g.Nodes))
	if err := c.compileGraph(); err != nil {
		return nil, fmt.Errorf("compile %q: %w", g.Name, err)
	}
	return c.plan, nil
}

func (c *compiler) compileGraph() error {
	if err := c.checkSupported(); err != nil {
		return err
	}
	if err := c.declareInputs(); err != nil {
		return err
	}

	// Nodes that an earlier one fused, such as an activation after a convolution, are done already.
	for i := range c.g.Nodes {
		if c.done[i] {
			continue
		}
		c.done[i] = true
		n := &c.g.Nodes[i]
		if err := c.lowerNode(n); err != nil {
			return fmt.Errorf("node %q (%s): %w", n.Name, n.Op, err)
		}
	}

	if err := c.finishOutputs(); err != nil {
		return err
	}

	c.plan.findLifetimes()
	c.plan.ActivationBytes = placeActivations(c.plan.Buffers)
	return nil
}

// checkSupported names all missing operators in one error.
func (c *compiler) checkSupported() error {
	var missing []string
	for i := range c.g.Nodes {
		if op := c.g.Nodes[i].Op; operators[op] == nil && !slices.Contains(missing, op) {
			missing = append(missing, op)
		}
	}
	if missing != nil {
		slices.Sort(missing)
		return fmt.Errorf("operators %s: %w", strings.Join(missing, ", "), ErrUnsupported)
	}
	return nil
}

// lowerNode turns a node into a layer, or computes it if it depends only on constants.
func (c *compiler) lowerNode(n *Node) error {
	op := operators[n.Op]

	for _, in := range n.Inputs {
		if in != "" && c.values[in] == nil {
			return fmt.Errorf("input %q is not defined before it is used", in)
		}
	}

	if len(n.Inputs) < op.inputs || len(n.Outputs) < 1 {
		return fmt.Errorf("%d inputs and %d outputs: needs %d and 1", len(n.Inputs), len(n.Outputs), op.inputs)
	}

	for i := range op.inputs {
		if n.Inputs[i] == "" {
			return fmt.Errorf("input %d is left out", i)
		}
	}

	// Nodes that depend only on constants are computed now.
	if c.dependsOnConstants(n) && n.Op != "Constant" {
		return c.foldNode(n)
	}

	c.node, c.layer = n, &Layer{Name: n.Name, Op: n.Op}
	if err := op.lower(c, n); err != nil {
		return err
	}
	if err := c.widenOutputs(); err != nil {
		return err
	}

	// A node that only reinterprets bytes, such as a Reshape, has no layer.
	if len(c.layer.Steps) > 0 {
		c.plan.Layers = append(c.plan.Layers, *c.layer)
	}
	return nil
}

// emitLaunch adds a launch; the first addresses words of the struct are refs.
func emitLaunch[T any](c *compiler, kernel string, addresses int, grid, block cuda.Dim, p *T) {
	c.layer.Steps = append(c.layer.Steps, Step{Kernel: kernels.Named(kernel, c.precision.Real()), Grid: grid, Block: block,
		Params: slices.Clone(kernels.Bytes(p)), Addresses: addresses})
}

// soleUser returns the only node that reads a value; nil if there are several or none, or the value is an output.
func (c *compiler) soleUser(name string) *Node {
	if u := c.users[name]; len(u) == 1 && !c.ends[name] && !c.done[u[0]] {
		return &c.g.Nodes[u[0]]
	}
	return nil
}

// fuseUser marks the only user of name as part of the current layer and returns the name of its output.
func (c *compiler) fuseUser(name string) string {
	i := c.users[name][0]
	c.done[i] = true
	c.layer.Op += "+" + c.g.Nodes[i].Op
	return c.g.Nodes[i].Outputs[0]
}
