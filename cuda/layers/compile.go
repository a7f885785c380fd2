package layers

import (
	"errors"
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

// declareInputs declares constants and inputs, and counts users.
func (c *compiler) declareInputs() error {
	for i := range c.g.Constants {
		k := &c.g.Constants[i]
		if err := k.checkData(); err != nil {
			return err
		}

		// An empty constant needs data too; nil would mean that the value is computed.
		data := k.Data
		if data == nil {
			data = []byte{}
		}
		c.values[k.Name] = &tensor{Value: k.Value, data: data, source: k.Name, buffer: -1, stored: k.Type}
	}

	for i, in := range c.g.Inputs {
		// Only the first dimension may be the batch. Every other one must be a number, because buffers are laid out
		// now.
		dims := slices.Clone(in.Dims)
		for d, n := range dims {
			if n == -1 && d == 0 {
				dims[d], c.batched = c.batch, true
			} else if n < 1 {
				return fmt.Errorf("input %q: dimension %d of %v is not fixed: %w", in.Name, d, in.Dims, ErrUnsupported)
			}
		}

		if (len(in.Dims) == 0 || in.Dims[0] != -1) && c.batch != 1 {
			return fmt.Errorf("input %q: shape %v has no batch dimension: %w", in.Name, in.Dims, ErrUnsupported)
		}

		t, err := c.newTensor(in.Name, in.Type, dims)
		if err != nil {
			return err
		}

		// Clients send float32, whatever the plan's precision.
		t.stored = t.Type
		t.buffer = c.addBuffer(Buffer{Kind: Input, Bytes: t.byteSize(), Index: i})
		c.plan.Inputs = append(c.plan.Inputs, Tensor{Value: t.Value, Layer: -1})
		if err := c.narrowInput(t); err != nil {
			return err
		}
	}

	// A value's users decide whether the step that computes it may fuse them.
	for i := range c.g.Nodes {
		for _, in := range c.g.Nodes[i].Inputs {
			c.users[in] = append(c.users[in], i)
		}
	}

	// Outputs must exist as buffers, so no step may fuse them away.
	for _, o := range c.g.Outputs {
		c.ends[o] = true
	}
	return nil
}

// narrowInput converts a float input to the plan's precision, in its own layer.
func (c *compiler) narrowInput(t *tensor) error {
	if t.stored == c.precision.storedType(t.Type) {
		return nil
	}

	// The same cast moves the channels of images to the end.
	y := &tensor{Value: t.Value, stored: c.precision.storedType(t.Type), last: len(t.Dims) == 4}
	y.buffer = c.addBuffer(Buffer{Kind: Activation, Bytes: y.byteSize()})

	c.layer = &Layer{Name: t.Name, Op: "Cast"}
	if err := c.convertType(t, y); err != nil {
		return err
	}

	c.plan.Layers = append(c.plan.Layers, *c.layer)
	c.values[t.Name] = y
	return nil
}

// widenOutputs converts the outputs of the current layer to float32 within the layer, so that an early output is
// complete when its layer is.
func (c *compiler) widenOutputs() error {
	if c.precision == FP32 {
		return nil
	}
	for _, name := range c.g.Outputs {
		t := c.values[name]
		if t == nil || t.isConstant() || t.Type != Float32 || c.wide[name] != nil {
			continue
		}

		y := &tensor{Value: t.Value, stored: Float32}
		y.buffer = c.addBuffer(Buffer{Kind: Activation, Bytes: y.byteSize()})

		if err := c.convertType(t, y); err != nil {
			return err
		}
		c.wide[name] = y
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

// finishOutputs gives each output of the graph an output buffer.
func (c *compiler) finishOutputs() error {
	if len(c.g.Outputs) == 0 {
		return errors.New("no outputs")
	}

	for i, name := range c.g.Outputs {
		t := c.values[name]
		if t == nil {
			return fmt.Errorf("output %q is not computed", name)
		}
		if c.batched && (len(t.Dims) == 0 || t.Dims[0] != c.batch) {
			return fmt.Errorf("output %q: shape %v does not begin with the batch of %d: %w", name, t.Dims, c.batch, ErrUnsupported)
		}

		// In half precision clients get the float32 copy.
		if w := c.wide[name]; w != nil {
			t = w
		}

		// An output needs its own buffer, in the type that clients see, so inputs, constants and views are copied.
		if t.buffer < 0 || c.plan.Buffers[t.buffer].Kind != Activation || t.stored != t.Type || t.last {
			var err error
			if t, err = c.copyOutput(t); err != nil {
				return err
			}
		}

		b := &c.plan.Buffers[t.buffer]
		b.Kind, b.Index = Output, i
		c.plan.Outputs = append(c.plan.Outputs, Tensor{Value: Value{name, t.Type, t.Dims}, Layer: c.lastWrite(t.buffer)})
	}
	return nil
}
