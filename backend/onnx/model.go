// Package onnx reads and writes ONNX files (IR version 3 and later): graphs, nodes with every kind of attribute,
// initialisers, inputs and outputs. It decodes and encodes protobuf's wire format itself.
//
// The package does not run models, infer shapes or know operators. Reading skips sparse tensors, functions, training
// information, documentation strings and metadata, so writing the model back loses them.
//
// Invariants:
//
//	O1  Unmarshal allocates memory in proportion to the size of the file, and a file has a limited number of parts.
//	O2  A tensor that was read without error holds in Raw exactly the bytes that its dims and type require,
//	    little-endian, whichever field of the file held them. External tensors have no bytes in Raw.
//	O3  Unmarshal(m.Marshal()) equals m.
//
// Concurrency: values are plain data without locks. Goroutines may share them only for reading.
package onnx

import "fmt"

// Model is ONNX's ModelProto.
type Model struct {
	IRVersion int64
	Producer  string
	Opsets    []Opset
	Graph     *Graph
}

// Opset is a version of an operator set; the domain "" is ONNX's own.
type Opset struct {
	Domain  string
	Version int64
}

// Opset returns the version of ONNX's own operator set; 0 if the model imports none.
func (m *Model) Opset() int64 {
	for _, o := range m.Opsets {
		if o.Domain == "" || o.Domain == "ai.onnx" {
			return o.Version
		}
	}
	return 0
}

// Graph is ONNX's GraphProto. Nodes are in topological order if Check passes.
type Graph struct {
	Name         string
	Nodes        []Node
	Initializers []Tensor
	Inputs       []Value // in old models (IR 3) also the initialisers
	Outputs      []Value
	Values       []Value // shapes and types of inner values, if the exporter wrote them
}

// Initializer returns the constant with a name; nil if there is none.
func (g *Graph) Initializer(name string) *Tensor {
	for i := range g.Initializers {
		if g.Initializers[i].Name == name {
			return &g.Initializers[i]
		}
	}
	return nil
}

// FeedInputs returns the inputs that a caller must feed: those without an initialiser.
func (g *Graph) FeedInputs() []Value {
	var in []Value
	for _, v := range g.Inputs {
		if g.Initializer(v.Name) == nil {
			in = append(in, v)
		}
	}
	return in
}

// Node is one operator call. An empty input or output name means an omitted optional one.
type Node struct {
	Name    string
	Op      string // op_type
	Domain  string
	Inputs  []string
	Outputs []string
	Attrs   []Attr
}

// Attr returns the attribute with a name; nil if the node has none.
func (n *Node) Attr(name string) *Attr {
	for i := range n.Attrs {
		if n.Attrs[i].Name == name {
			return &n.Attrs[i]
		}
	}
	return nil
}

// Int returns an integer attribute, or def if the node has none with that name.
func (n *Node) Int(name string, def int64) int64 {
	if a := n.Attr(name); a != nil && a.Kind == AttrInt {
		return a.I
	}
	return def
}

// Float returns a float attribute, or def if the node has none with that name.
func (n *Node) Float(name string, def float32) float32 {
	if a := n.Attr(name); a != nil && a.Kind == AttrFloat {
		return a.F
	}
	return def
}

// Ints returns an integer list attribute, or def if the node has none with that name.
func (n *Node) Ints(name string, def []int64) []int64 {
	if a := n.Attr(name); a != nil && a.Kind == AttrInts {
		return a.Ints
	}
	return def
}

// Text returns a string attribute, or def if the node has none with that name.
func (n *Node) Text(name, def string) string {
	if a := n.Attr(name); a != nil && a.Kind == AttrString {
		return string(a.S)
	}
	return def
}

// AttrKind is ONNX's AttributeType.
type AttrKind int32

// The kinds of attributes; the field of Attr that a kind uses has the same name.
const (
	AttrUndefined     AttrKind = 0
	AttrFloat         AttrKind = 1
	AttrInt           AttrKind = 2
	AttrString        AttrKind = 3
	AttrTensor        AttrKind = 4
	AttrGraph         AttrKind = 5
	AttrFloats        AttrKind = 6
	AttrInts          AttrKind = 7
	AttrStrings       AttrKind = 8
	AttrTensors       AttrKind = 9
	AttrGraphs        AttrKind = 10
	AttrSparseTensor  AttrKind = 11 // skipped: only the kind is kept
	AttrSparseTensors AttrKind = 12 // skipped
	AttrType          AttrKind = 13 // skipped
	AttrTypes         AttrKind = 14 // skipped
)

// Attr is one attribute of a node.
type Attr struct {
	Name    string
	Kind    AttrKind
	F       float32
	I       int64
	S       []byte
	T       *Tensor
	G       *Graph
	Floats  []float32
	Ints    []int64
	Strings [][]byte
	Tensors []Tensor
	Graphs  []*Graph
	Ref     string // within a function: the function's attribute to use; else ""
}

// Value is the name and type of an input, an output or an inner value.
type Value struct {
	Name string
	Type DataType // Undefined if it is not a tensor or not given
	Dims []Dim    // nil if not given; empty for a scalar
}

// Dim is one dimension: a size, or a name such as "batch" for a size known only at run time (Size −1).
type Dim struct {
	Size int64
	Name string
}

// Fixed returns dimensions of known sizes.
func Fixed(sizes ...int64) []Dim {
	d := make([]Dim, len(sizes))
	for i, s := range sizes {
		d[i].Size = s
	}
	return d
}

// Batched returns dimensions of known sizes after a first one named "batch", whose size is not known.
func Batched(sizes ...int64) []Dim {
	return append([]Dim{{Size: -1, Name: "batch"}}, Fixed(sizes...)...)
}

// Check returns an error unless g is well formed: every name is defined once and before its use, and outputs exist.
func (g *Graph) Check() error { return g.checkNames(nil) }

func (g *Graph) checkNames(outer map[string]bool) error {
	known := make(map[string]bool, len(outer)+len(g.Inputs)+len(g.Initializers)+len(g.Nodes))

	// A graph within a node may use the values of the graphs around it.
	for name := range outer {
		known[name] = true
	}
	for _, v := range g.Inputs {
		known[v.Name] = true
	}
	for _, t := range g.Initializers {
		known[t.Name] = true
	}

	// A name may hide one of an enclosing graph, but no graph defines a name twice.
	made := map[string]bool{}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		for _, in := range n.Inputs {
			if in != "" && !known[in] {
				return fmt.Errorf("node %d (%s %q): input %q: want a graph input, an initialiser or an earlier node's output", i, n.Op, n.Name, in)
			}
		}

		for _, a := range n.Attrs {
			for _, sub := range append([]*Graph{a.G}, a.Graphs...) {
				if sub == nil {
					continue
				}
				if err := sub.checkNames(known); err != nil {
					return fmt.Errorf("node %d (%s %q): attribute %s: %w", i, n.Op, n.Name, a.Name, err)
				}
			}
		}

		for _, out := range n.Outputs {
			if out != "" && made[out] {
				return fmt.Errorf("node %d (%s %q): output %q: is made twice", i, n.Op, n.Name, out)
			}
			known[out], made[out] = true, true
		}
	}

	for _, v := range g.Outputs {
		if !known[v.Name] {
			return fmt.Errorf("output %q: no node makes it", v.Name)
		}
	}
	return nil
}
