package layers

import (
	"fmt"
	"slices"

	"downbeat.dev/cuda/kernels"
)

// operator describes how a node becomes launches. inputs is the required number of inputs.
type operator struct {
	inputs int
	lower  func(c *compiler, n *Node) error
}

// operators are the supported operators. It is filled in init because lowering a constant looks it up.
var operators map[string]*operator

func init() {
	operators = map[string]*operator{
		"Conv": {2, lowerConv}, "ConvTranspose": {2, lowerConvTranspose}, "Greater": {2, lowerGreater}, "Gemm": {2, lowerGemm}, "MatMul": {2, matMul}, "BatchNormalization": {5, batchNorm},
		"MaxPool": {1, lowerPool(kernels.PoolMax)}, "AveragePool": {1, lowerPool(kernels.PoolAverage)},
		"GlobalAveragePool": {1, globalPool(kernels.ReduceMean)}, "GlobalMaxPool": {1, globalPool(kernels.ReduceMax)},
		"ReduceMean": {1, lowerReduce(kernels.ReduceMean)}, "ReduceSum": {1, lowerReduce(kernels.ReduceSum)},
		"ReduceMax": {1, lowerReduce(kernels.ReduceMax)}, "ReduceMin": {1, lowerReduce(kernels.ReduceMin)},
		"ReduceL2": {1, lowerReduce(kernels.ReduceL2)}, "ArgMax": {1, argMax},
		"Softmax": {1, lowerSoftmax(0)}, "LogSoftmax": {1, lowerSoftmax(1)}, "LayerNormalization": {2, layerNorm},
		"Add": {2, lowerBinary(kernels.Add)}, "Sub": {2, lowerBinary(kernels.Sub)}, "Mul": {2, lowerBinary(kernels.Mul)},
		"Div": {2, lowerBinary(kernels.Div)}, "Pow": {2, lowerBinary(kernels.Pow)}, "Min": {1, lowerBinary(kernels.Min)},
		"Max": {1, lowerBinary(kernels.Max)}, "Sum": {1, lowerBinary(kernels.Add)}, "Where": {3, lowerWhere},
		"Identity": {1, lowerView}, "Dropout": {1, lowerView}, "Reshape": {1, lowerReshape}, "Flatten": {1, lowerFlatten},
		"Squeeze": {1, lowerSqueeze}, "Unsqueeze": {1, lowerUnsqueeze}, "Transpose": {1, lowerTranspose}, "Expand": {2, lowerExpand},
		"Concat": {1, lowerConcat}, "Split": {1, lowerSplit}, "Slice": {1, lowerSlice}, "Pad": {1, lowerPad}, "Gather": {2, lowerGather},
		"Cast": {1, lowerCast}, "Shape": {1, lowerShape}, "Constant": {0, lowerConstant}, "ConstantOfShape": {1, constantOfShape},
		"Range": {3, lowerRange}, opAttention: {2, lowerAttention}, opLinears: {3, lowerLinears},
	}

	for op := range activations {
		operators[op] = &operator{1, lowerUnary}
	}
}

// activation is a function that a step applies to each element.
type activation struct {
	kind kernels.Activation
	a, b float32
}

// activations are the operators that another launch can apply before it stores its result. Each takes its constants
// from the node, and returns false if they are not constants.
var activations = map[string]func(c *compiler, n *Node) (activation, bool){
	"Relu": fixedActivation(kernels.Relu), "Sigmoid": fixedActivation(kernels.Sigmoid), "Tanh": fixedActivation(kernels.Tanh),
	"HardSwish": fixedActivation(kernels.HardSwish), "Erf": fixedActivation(kernels.Erf), "Exp": fixedActivation(kernels.Exp),
	"Log": fixedActivation(kernels.Log), "Sqrt": fixedActivation(kernels.Sqrt), "Neg": fixedActivation(kernels.Neg), "Abs": fixedActivation(kernels.Abs),
	"Reciprocal": fixedActivation(kernels.Reciprocal), "Floor": fixedActivation(kernels.Floor), "Ceil": fixedActivation(kernels.Ceil),
	"Softplus":    fixedActivation(kernels.Softplus),
	"LeakyRelu":   activationByAttrs(kernels.LeakyRelu, 0.01, 0),
	"Elu":         activationByAttrs(kernels.Elu, 1, 0),
	"HardSigmoid": activationByAttrs(kernels.HardSigmoid, 0.2, 0.5),
	"Gelu":        geluOf, "Clip": clipOf,
}

func fixedActivation(kind kernels.Activation) func(*compiler, *Node) (activation, bool) {
	return func(*compiler, *Node) (activation, bool) { return activation{kind: kind}, true }
}

func activationByAttrs(kind kernels.Activation, alpha, beta float32) func(*compiler, *Node) (activation, bool) {
	return func(_ *compiler, n *Node) (activation, bool) {
		act := activation{kind, alpha, beta}
		if a, ok := n.Attrs["alpha"]; ok {
			act.a = a.Float
		}
		if b, ok := n.Attrs["beta"]; ok {
			act.b = b.Float
		}
		return act, true
	}
}

func geluOf(_ *compiler, n *Node) (activation, bool) {
	if n.Attrs["approximate"].Text == "tanh" {
		return activation{kind: kernels.GeluTanh}, true
	}
	return activation{kind: kernels.Gelu}, true
}

const floatMax = 3.4028234663852886e38

// clipOf reads the bounds from attributes before operator set 11, and from inputs after.
func clipOf(c *compiler, n *Node) (activation, bool) {
	act := activation{kernels.Clip, -floatMax, floatMax}

	if a, ok := n.Attrs["min"]; ok {
		act.a = a.Float
	}
	if b, ok := n.Attrs["max"]; ok {
		act.b = b.Float
	}

	// Since opset 11 the bounds are inputs; they can be fused if they are constants.
	for i, p := range []*float32{&act.a, &act.b} {
		if i+1 >= len(n.Inputs) || n.Inputs[i+1] == "" {
			continue
		}
		t := c.values[n.Inputs[i+1]]
		if t == nil || !t.isConstant() || t.Type != Float32 || t.elements() != 1 {
			return act, false
		}
		*p = floatsOf(t.data)[0]
	}
	return act, true
}

// fuseTail fuses the nodes that follow name into the current launch: a residual addition if add allows it, then an
// activation. It returns the name of the last value, whose tensor the launch must write.
func (c *compiler) fuseTail(name string, dims []int, add bool) (last string, residual *tensor, act activation) {
	// An addition can be fused if its other operand has the same shape: a residual connection.
	if n := c.soleUser(name); add && n != nil && n.Op == "Add" {
		other := n.Inputs[0]
		if other == name {
			other = n.Inputs[1]
		}
		if t := c.values[other]; t != nil && !t.isConstant() && t.Type == Float32 && slices.Equal(t.Dims, dims) {
			residual = t
			name = c.fuseUser(name)
		}
	}

	n := c.soleUser(name)
	if n == nil {
		return name, residual, act
	}

	if find := activations[n.Op]; find != nil && n.Inputs[0] == name {
		if a, ok := find(c, n); ok {
			return c.fuseUser(name), residual, a
		}
	}
	return name, residual, act
}

// requireFloat returns an error if one of the inputs has another type.
func (c *compiler) requireFloat(inputs ...int) error {
	for _, i := range inputs {
		if t := c.anyInput(i); t != nil && t.Type != Float32 {
			return fmt.Errorf("input %d is %v: %w", i, t.Type, ErrUnsupported)
		}
	}
	return nil
}

func lowerUnary(c *compiler, n *Node) error {
	if err := c.requireFloat(0); err != nil {
		return err
	}

	act, ok := activations[n.Op](c, n)
	if !ok {
		return fmt.Errorf("bounds are not constants: %w", ErrUnsupported)
	}

	x, out := c.anyInput(0), n.Outputs[0]
	if m := c.soleUser(out); n.Op == "Sigmoid" && m != nil && m.Op == "Mul" { // x·sigmoid(x) is Swish
		if u := c.users[x.Name]; slices.Contains(m.Inputs, x.Name) && len(u) > 0 {
			act, out = activation{kind: kernels.Swish}, c.fuseUser(out)
		}
	}
	return c.emitElementwise(x, out, act)
}

func (c *compiler) emitElementwise(x *tensor, out string, act activation) error {
	y, err := c.makeResult(out, Float32, x.Dims)
	if err != nil {
		return err
	}

	// Elements are independent: the result keeps the order of its input.
	y.last = x.last
	p := kernels.Unary{X: c.refOf(x), Y: c.refOf(y), Count: int64(x.elements()), Act: act.kind, A: act.a, B: act.b}
	grid, block := kernels.Elementwise(p.Count)
	emitLaunch(c, "unary", 2, grid, block, &p)
	return nil
}

// lowerBinary lowers an operator of two inputs, or of any number by chaining.
func lowerBinary(op int32) func(*compiler, *Node) error {
	return func(c *compiler, n *Node) error {
		x := c.anyInput(0)

		// A Sum or a Max of one input is that input.
		if len(n.Inputs) == 1 {
			x = c.plainInput(0)
			return c.aliasResult(n.Outputs[0], x, x.Dims)
		}

		// More than two operands are combined pairwise, and only the last pair may fuse an activation.
		for i := 1; i < len(n.Inputs); i++ {
			y := c.anyInput(i)
			if y == nil || y.Type != x.Type || x.Type != Float32 && (x.Type != Int64 || op == kernels.Pow) {
				if op == kernels.Pow && y != nil && y.isConstant() && x.Type == Float32 {
					return fmt.Errorf("exponent is %v: %w", y.Type, ErrUnsupported)
				}
				return fmt.Errorf("input %d and the one before are not both float32 or int64: %w", i, ErrUnsupported)
			}

			last := i == len(n.Inputs)-1
			name := n.Outputs[0]
			if !last {
				name = fmt.Sprintf("%s/%d", name, i)
			}

			var err error
			if x, err = c.emitBinary(op, x, y, name, last); err != nil {
				return err
			}
		}
		return nil
	}
}

func (c *compiler) emitBinary(op int32, x, y *tensor, name string, last bool) (*tensor, error) {
	dims, err := broadcastShape(x.Dims, y.Dims)
	if err != nil {
		return nil, err
	}

	// Only the last step of a chain computes the node's own value, which may fuse later nodes.
	act := activation{}
	if last && x.Type == Float32 {
		name, _, act = c.fuseTail(name, dims, false)
	}

	out, err := c.makeResult(name, x.Type, dims)
	if err != nil {
		return nil, err
	}

	list := []*tensor{x, y}
	imaged, order, views, err := c.shapeTogether(dims, list)
	if err != nil {
		return nil, err
	}

	x, y, out.last = list[0], list[1], imaged
	d, s, err := joinDims(order, views[0], views[1], denseStrides(order))
	if err != nil {
		return nil, err
	}

	// A square is far cheaper than a power, and exported layer normalisations contain many squares.
	if op == kernels.Pow && y.isConstant() && y.elements() == 1 && floatsOf(y.data)[0] == 2 && act.kind == kernels.None {
		p := kernels.Unary{X: c.refOf(x), Y: c.refOf(out), Count: int64(x.elements()), Act: kernels.Square}
		if slices.Equal(dims, x.Dims) {
			grid, block := kernels.Elementwise(p.Count)
			emitLaunch(c, "unary", 2, grid, block, &p)
			return out, nil
		}
	}

	kernel := "binary"
	if x.Type == Int64 {
		kernel = "binary_int64"
	}

	p := kernels.Binary{P: c.refOf(x), Q: c.refOf(y), Y: c.refOf(out), Count: int64(out.elements()), Dims: d, PS: s[0], QS: s[1],
		Op: op, Act: act.kind, A: act.a, B: act.b}
	grid, block := kernels.Elementwise(p.Count)
	emitLaunch(c, kernel, 3, grid, block, &p)
	return out, nil
}

func lowerWhere(c *compiler, n *Node) error {
	cond, x, y := c.plainInput(0), c.plainInput(1), c.plainInput(2)
	if cond.Type != Bool || x.Type != Float32 || y.Type != Float32 {
		return fmt.Errorf("types %v, %v, %v: %w", cond.Type, x.Type, y.Type, ErrUnsupported)
	}

	dims, err := broadcastShape(x.Dims, y.Dims)
	if err == nil {
		dims, err = broadcastShape(dims, cond.Dims)
	}
	if err != nil {
		return err
	}

	out, err := c.makeResult(n.Outputs[0], Float32, dims)
	if err != nil {
		return err
	}

	// All four are traversed as one shape, in which a smaller one repeats with strides of 0.
	d, s, err := joinDims(dims, repeatedStrides(cond.Dims, dims), repeatedStrides(x.Dims, dims), repeatedStrides(y.Dims, dims), denseStrides(dims))
	if err != nil {
		return err
	}

	p := kernels.Where{Cond: c.refOf(cond), P: c.refOf(x), Q: c.refOf(y), Y: c.refOf(out), Count: int64(out.elements()), Dims: d, CS: s[0], PS: s[1], QS: s[2]}
	grid, block := kernels.Elementwise(p.Count)
	emitLaunch(c, "where", 4, grid, block, &p)
	return nil
}
