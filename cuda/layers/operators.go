package layers

import (
	"fmt"
	"slices"

	"downbeat.dev/cuda/kernels"
)

// operator says how a node becomes launches. inputs is how many it must have.
type operator struct {
	inputs int
	lower  func(c *compiler, n *Node) error
}

// operators are all that are supported. It is filled in init because lowering a constant looks it up.
var operators map[string]*operator

func init() {
	operators = map[string]*operator{
		"Conv": {2, conv}, "Gemm": {2, gemm}, "MatMul": {2, matMul}, "BatchNormalization": {5, batchNorm},
		"MaxPool": {1, pool(kernels.PoolMax)}, "AveragePool": {1, pool(kernels.PoolAverage)},
		"GlobalAveragePool": {1, globalPool(kernels.ReduceMean)}, "GlobalMaxPool": {1, globalPool(kernels.ReduceMax)},
		"ReduceMean": {1, reduce(kernels.ReduceMean)}, "ReduceSum": {1, reduce(kernels.ReduceSum)},
		"ReduceMax": {1, reduce(kernels.ReduceMax)}, "ReduceMin": {1, reduce(kernels.ReduceMin)},
		"ReduceL2": {1, reduce(kernels.ReduceL2)}, "ArgMax": {1, argMax},
		"Softmax": {1, softmax(0)}, "LogSoftmax": {1, softmax(1)}, "LayerNormalization": {2, layerNorm},
		"Add": {2, binary(kernels.Add)}, "Sub": {2, binary(kernels.Sub)}, "Mul": {2, binary(kernels.Mul)},
		"Div": {2, binary(kernels.Div)}, "Pow": {2, binary(kernels.Pow)}, "Min": {1, binary(kernels.Min)},
		"Max": {1, binary(kernels.Max)}, "Sum": {1, binary(kernels.Add)}, "Where": {3, where},
		"Identity": {1, view}, "Dropout": {1, view}, "Reshape": {1, reshape}, "Flatten": {1, flatten},
		"Squeeze": {1, squeeze}, "Unsqueeze": {1, unsqueeze}, "Transpose": {1, transpose}, "Expand": {2, expand},
		"Concat": {1, concat}, "Split": {1, split}, "Slice": {1, slice}, "Pad": {1, pad}, "Gather": {2, gather},
		"Cast": {1, cast}, "Shape": {1, shape}, "Constant": {0, constant}, "ConstantOfShape": {1, constantOfShape},
		"Range": {3, numbers}, opAttention: {2, attention}, opLinears: {3, linears},
	}
	for op := range activations {
		operators[op] = &operator{1, unary}
	}
}

// activation is what a node applies to each element.
type activation struct {
	kind kernels.Activation
	a, b float32
}

// activations are the operators that another launch can apply before it stores. Each takes its constants
// from the node; false when they are not constants.
var activations = map[string]func(c *compiler, n *Node) (activation, bool){
	"Relu": fixed(kernels.Relu), "Sigmoid": fixed(kernels.Sigmoid), "Tanh": fixed(kernels.Tanh),
	"HardSwish": fixed(kernels.HardSwish), "Erf": fixed(kernels.Erf), "Exp": fixed(kernels.Exp),
	"Log": fixed(kernels.Log), "Sqrt": fixed(kernels.Sqrt), "Neg": fixed(kernels.Neg), "Abs": fixed(kernels.Abs),
	"Reciprocal": fixed(kernels.Reciprocal), "Floor": fixed(kernels.Floor), "Ceil": fixed(kernels.Ceil),
	"Softplus":    fixed(kernels.Softplus),
	"LeakyRelu":   attrs(kernels.LeakyRelu, 0.01, 0),
	"Elu":         attrs(kernels.Elu, 1, 0),
	"HardSigmoid": attrs(kernels.HardSigmoid, 0.2, 0.5),
	"Gelu":        gelu, "Clip": clip,
}

func fixed(kind kernels.Activation) func(*compiler, *Node) (activation, bool) {
	return func(*compiler, *Node) (activation, bool) { return activation{kind: kind}, true }
}

func attrs(kind kernels.Activation, alpha, beta float32) func(*compiler, *Node) (activation, bool) {
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

func gelu(_ *compiler, n *Node) (activation, bool) {
	if n.Attrs["approximate"].Text == "tanh" {
		return activation{kind: kernels.GeluTanh}, true
	}
	return activation{kind: kernels.Gelu}, true
}

const floatMax = 3.4028234663852886e38

// clip has its bounds in attributes before operator set 11, in inputs after.
func clip(c *compiler, n *Node) (activation, bool) {
	act := activation{kernels.Clip, -floatMax, floatMax}
	if a, ok := n.Attrs["min"]; ok {
		act.a = a.Float
	}
	if b, ok := n.Attrs["max"]; ok {
		act.b = b.Float
	}
	for i, p := range []*float32{&act.a, &act.b} {
		if i+1 >= len(n.Inputs) || n.Inputs[i+1] == "" {
			continue
		}
		t := c.values[n.Inputs[i+1]]
		if t == nil || !t.constant() || t.Type != Float32 || t.elements() != 1 {
			return act, false
		}
		*p = floatsOf(t.data)[0]
	}
	return act, true
}

// tail fuses what follows name into the launch under way: a residual addition if add allows it, then an
// activation. It returns the name of the last value, whose tensor the launch must write.
func (c *compiler) tail(name string, dims []int, add bool) (last string, residual *tensor, act activation) {
	if n := c.sole(name); add && n != nil && n.Op == "Add" {
		other := n.Inputs[0]
		if other == name {
			other = n.Inputs[1]
		}
		if t := c.values[other]; t != nil && !t.constant() && t.Type == Float32 && slices.Equal(t.Dims, dims) {
			residual = t
			name = c.fused(name)
		}
	}
	n := c.sole(name)
	if n == nil {
		return name, residual, act
	}
	if find := activations[n.Op]; find != nil && n.Inputs[0] == name {
		if a, ok := find(c, n); ok {
			return c.fused(name), residual, a
		}
	}
	return name, residual, act
}

// float refuses inputs of another type.
func (c *compiler) float(inputs ...int) error {
	for _, i := range inputs {
		if t := c.any(i); t != nil && t.Type != Float32 {
			return fmt.Errorf("input %d is %v: %w", i, t.Type, ErrUnsupported)
		}
	}
	return nil
}

func unary(c *compiler, n *Node) error {
	if err := c.float(0); err != nil {
		return err
	}
	act, ok := activations[n.Op](c, n)
	if !ok {
		return fmt.Errorf("bounds are not constants: %w", ErrUnsupported)
	}
	x, out := c.any(0), n.Outputs[0]
	if m := c.sole(out); n.Op == "Sigmoid" && m != nil && m.Op == "Mul" { // x·sigmoid(x) is Swish
		if u := c.users[x.Name]; slices.Contains(m.Inputs, x.Name) && len(u) > 0 {
			act, out = activation{kind: kernels.Swish}, c.fused(out)
		}
	}
	return c.elementwise(x, out, act)
}

func (c *compiler) elementwise(x *tensor, out string, act activation) error {
	y, err := c.result(out, Float32, x.Dims)
	if err != nil {
		return err
	}
	y.last = x.last
	p := kernels.Unary{X: c.at(x), Y: c.at(y), Count: int64(x.elements()), Act: act.kind, A: act.a, B: act.b}
	grid, block := kernels.Elementwise(p.Count)
	emit(c, "unary", 2, grid, block, &p)
	return nil
}

// binary lowers an operator of two inputs, or of any number by chaining.
func binary(op int32) func(*compiler, *Node) error {
	return func(c *compiler, n *Node) error {
		x := c.any(0)
		if len(n.Inputs) == 1 {
			x = c.in(0)
			return c.alias(n.Outputs[0], x, x.Dims)
		}
		for i := 1; i < len(n.Inputs); i++ {
			y := c.any(i)
			if y == nil || y.Type != x.Type || x.Type != Float32 && (x.Type != Int64 || op == kernels.Pow) {
				if op == kernels.Pow && y != nil && y.constant() && x.Type == Float32 {
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
			if x, err = c.binary(op, x, y, name, last); err != nil {
				return err
			}
		}
		return nil
	}
}

func (c *compiler) binary(op int32, x, y *tensor, name string, last bool) (*tensor, error) {
	dims, err := broadcast(x.Dims, y.Dims)
	if err != nil {
		return nil, err
	}
	act := activation{}
	if last && x.Type == Float32 {
		name, _, act = c.tail(name, dims, false)
	}
	out, err := c.result(name, x.Type, dims)
	if err != nil {
		return nil, err
	}
	list := []*tensor{x, y}
	imaged, order, views, err := c.shaped(dims, list)
	if err != nil {
		return nil, err
	}
	x, y, out.last = list[0], list[1], imaged
	d, s, err := join(order, views[0], views[1], dense(order))
	if err != nil {
		return nil, err
	}
	if op == kernels.Pow && y.constant() && y.elements() == 1 && floatsOf(y.data)[0] == 2 && act.kind == kernels.None {
		p := kernels.Unary{X: c.at(x), Y: c.at(out), Count: int64(x.elements()), Act: kernels.Square}
		if slices.Equal(dims, x.Dims) {
			grid, block := kernels.Elementwise(p.Count)
			emit(c, "unary", 2, grid, block, &p)
			return out, nil
		}
	}
	kernel := "binary"
	if x.Type == Int64 {
		kernel = "binary_int64"
	}
	p := kernels.Binary{P: c.at(x), Q: c.at(y), Y: c.at(out), Count: int64(out.elements()), Dims: d, PS: s[0], QS: s[1],
		Op: op, Act: act.kind, A: act.a, B: act.b}
	grid, block := kernels.Elementwise(p.Count)
	emit(c, kernel, 3, grid, block, &p)
	return out, nil
}

func where(c *compiler, n *Node) error {
	cond, x, y := c.in(0), c.in(1), c.in(2)
	if cond.Type != Bool || x.Type != Float32 || y.Type != Float32 {
		return fmt.Errorf("types %v, %v, %v: %w", cond.Type, x.Type, y.Type, ErrUnsupported)
	}
	dims, err := broadcast(x.Dims, y.Dims)
	if err == nil {
		dims, err = broadcast(dims, cond.Dims)
	}
	if err != nil {
		return err
	}
	out, err := c.result(n.Outputs[0], Float32, dims)
	if err != nil {
		return err
	}
	d, s, err := join(dims, repeated(cond.Dims, dims), repeated(x.Dims, dims), repeated(y.Dims, dims), dense(dims))
	if err != nil {
		return err
	}
	p := kernels.Where{Cond: c.at(cond), P: c.at(x), Q: c.at(y), Y: c.at(out), Count: int64(out.elements()), Dims: d, CS: s[0], PS: s[1], QS: s[2]}
	grid, block := kernels.Elementwise(p.Count)
	emit(c, "where", 4, grid, block, &p)
	return nil
}
