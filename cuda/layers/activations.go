package layers

import (
	"slices"

	"downbeat.dev/cuda/kernels"
)

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
