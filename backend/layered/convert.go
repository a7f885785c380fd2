package layered

import (
	"fmt"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/cuda/layers"
)

var types = map[onnx.DataType]layers.DataType{
	onnx.Float: layers.Float32, onnx.Int32: layers.Int32, onnx.Int64: layers.Int64, onnx.Bool: layers.Bool, onnx.Uint8: layers.Uint8,
}

// Graph converts a model. It shares the model's bytes.
func Graph(m *onnx.Model) (*layers.Graph, error) {
	if m.Graph == nil {
		return nil, fmt.Errorf("model without a graph")
	}
	if err := m.Graph.Check(); err != nil {
		return nil, err
	}

	g := &layers.Graph{Name: m.Graph.Name, Opset: m.Opset()}
	for i := range m.Graph.Initializers {
		c, err := toConstant(&m.Graph.Initializers[i])
		if err != nil {
			return nil, err
		}
		g.Constants = append(g.Constants, *c)
	}

	// Old files list their constants among the inputs; no request feeds those.
	for _, v := range m.Graph.FeedInputs() {
		in, err := toInput(v)
		if err != nil {
			return nil, err
		}
		g.Inputs = append(g.Inputs, in)
	}

	for _, v := range m.Graph.Outputs {
		g.Outputs = append(g.Outputs, v.Name)
	}

	for i := range m.Graph.Nodes {
		n, err := toNode(&m.Graph.Nodes[i])
		if err != nil {
			return nil, err
		}
		g.Nodes = append(g.Nodes, n)
	}
	return g, nil
}

func toConstant(t *onnx.Tensor) (*layers.Constant, error) {
	typ, ok := types[t.Type]
	if !ok {
		return nil, fmt.Errorf("constant %q is %v: %w", t.Name, t.Type, layers.ErrUnsupported)
	}
	if t.External {
		return nil, fmt.Errorf("constant %q lies in another file: %w", t.Name, layers.ErrUnsupported)
	}

	// Share the file's bytes: weights are large, and only read.
	c := &layers.Constant{Value: layers.Value{Name: t.Name, Type: typ, Dims: make([]int, len(t.Dims))}, Data: t.Raw}
	for i, d := range t.Dims {
		c.Dims[i] = int(d)
	}
	return c, nil
}

func toInput(v onnx.Value) (layers.Value, error) {
	typ, ok := types[v.Type]
	if !ok {
		return layers.Value{}, fmt.Errorf("input %q is %v: %w", v.Name, v.Type, layers.ErrUnsupported)
	}

	in := layers.Value{Name: v.Name, Type: typ, Dims: make([]int, len(v.Dims))}
	for i, d := range v.Dims {
		in.Dims[i] = int(d.Size)
	}
	return in, nil
}

// toNode converts a node with its attributes.
func toNode(n *onnx.Node) (layers.Node, error) {
	out := layers.Node{Name: n.Name, Op: n.Op, Inputs: n.Inputs, Outputs: n.Outputs, Attrs: map[string]layers.Attr{}}
	if n.Domain != "" && n.Domain != "ai.onnx" {
		out.Op = n.Domain + "." + n.Op // an operator of another set with the same name is another operator
	}

	for i := range n.Attrs {
		a := &n.Attrs[i]
		attr := layers.Attr{Int: a.I, Float: a.F, Ints: a.Ints, Floats: a.Floats, Text: string(a.S)}
		if a.T != nil {
			t, err := toConstant(a.T)
			if err != nil {
				return out, fmt.Errorf("node %q (%s): attribute %s: %w", n.Name, n.Op, a.Name, err)
			}
			attr.Tensor = t
		}
		out.Attrs[a.Name] = attr
	}
	return out, nil
}
