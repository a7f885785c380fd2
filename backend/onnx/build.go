package onnx

import (
	"fmt"
	"strconv"
)

// Builder writes a graph node by node; values are named by strings. The zero value is not ready:
// use NewBuilder. One goroutine.
type Builder struct {
	graph  Graph
	unique int
}

// NewBuilder starts a graph of that name.
func NewBuilder(name string) *Builder { return &Builder{graph: Graph{Name: name}} }

// Input declares a graph input and returns its name.
func (b *Builder) Input(name string, t DataType, dims []Dim) string {
	b.graph.Inputs = append(b.graph.Inputs, Value{Name: name, Type: t, Dims: dims})
	return name
}

// Output makes value a graph output under the given name.
func (b *Builder) Output(name, value string, t DataType, dims []Dim) {
	// Other nodes read the value by its name, so the output needs another value.
	b.NodeTo("Identity", []string{name}, []string{value})
	b.graph.Outputs = append(b.graph.Outputs, Value{Name: name, Type: t, Dims: dims})
}

// Const adds an initialiser and returns its name; an unnamed one gets a new name.
func (b *Builder) Const(t Tensor) string {
	if t.Name == "" {
		t.Name = b.freshName("c")
	}
	b.graph.Initializers = append(b.graph.Initializers, t)
	return t.Name
}

// Scalar adds a Float scalar.
func (b *Builder) Scalar(v float32) string { return b.Const(FloatTensor("", []float32{v})) }

// Shape adds a one-dimensional Int64 tensor, the form that Reshape, Expand and reductions take.
func (b *Builder) Shape(v ...int64) string { return b.Const(IntTensor("", v, int64(len(v)))) }

// Node adds a node with one output and returns that output's name. Attributes come from the
// functions Int, Ints, FloatAttr and Text.
func (b *Builder) Node(op string, inputs []string, attrs ...Attr) string {
	out := b.freshName(op)
	b.NodeTo(op, []string{out}, inputs, attrs...)
	return out
}

// NodeTo adds a node whose outputs have the given names.
func (b *Builder) NodeTo(op string, outputs, inputs []string, attrs ...Attr) {
	b.graph.Nodes = append(b.graph.Nodes, Node{
		Name: op + "_" + strconv.Itoa(len(b.graph.Nodes)), Op: op, Inputs: inputs, Outputs: outputs, Attrs: attrs})
}

func (b *Builder) freshName(prefix string) string {
	b.unique++
	return prefix + "." + strconv.Itoa(b.unique)
}

// Model checks the graph and wraps it with an operator set version of ONNX's own domain.
func (b *Builder) Model(opset int64) (*Model, error) {
	g := b.graph
	if err := g.Check(); err != nil {
		return nil, fmt.Errorf("graph %q: %w", g.Name, err)
	}
	return &Model{IRVersion: 8, Producer: "downbeat", Opsets: []Opset{{Version: opset}}, Graph: &g}, nil
}

// Int returns an integer attribute.
func Int(name string, v int64) Attr { return Attr{Name: name, Kind: AttrInt, I: v} }

// Ints returns an integer list attribute.
func Ints(name string, v ...int64) Attr { return Attr{Name: name, Kind: AttrInts, Ints: v} }

// FloatAttr returns a float attribute.
func FloatAttr(name string, v float32) Attr { return Attr{Name: name, Kind: AttrFloat, F: v} }

// Text returns a string attribute.
func Text(name, v string) Attr { return Attr{Name: name, Kind: AttrString, S: []byte(v)} }
