package onnx

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
)

// ExitSuffix is what the outputs of early exit k, from 1, have behind their names in a graph that holds a model and its
// exits.
func ExitSuffix(k int) string { return ".exit" + strconv.Itoa(k) }

// isExitOutput tells whether an output is some exit's.
func isExitOutput(name string) bool {
	at := strings.LastIndex(name, ".exit")
	if at < 0 {
		return false
	}
	_, err := strconv.ParseUint(name[at+len(".exit"):], 10, 16)
	return err == nil
}

// IsExitOutput tells whether an output of a model's file is some exit's: its name says so, and the model's configuration
// does not name it.
func IsExitOutput(m *repo.Model, name string) bool {
	return isExitOutput(name) && !slices.ContainsFunc(m.Outputs, func(t model.Tensor) bool { return t.Name == name })
}

// Part is the graph that one model runs, of a file that holds a model and its early exits.
type Part struct {
	*Model
	// Whole says that the file holds nothing else.
	Whole bool
	// SharedBytes are those of the part's constants that the file's own model reads as well; 0 of that model itself.
	SharedBytes int64
}

// ReadPart reads what a model of the repository runs of its file: all of it, or where the file has early exits, what leads
// to the model's own outputs. The outputs of an exit get the names that its configuration has.
func ReadPart(m *repo.Model) (Part, error) {
	file, err := Read(m.ONNXPath)
	if err != nil {
		return Part{}, err
	}

	// A file without exits is run as it is.
	exits := slices.ContainsFunc(file.Graph.Outputs, func(v Value) bool { return IsExitOutput(m, v.Name) })
	if !exits && m.ExitStage == 0 {
		return Part{Model: file, Whole: true}, nil
	}

	own, err := file.cutExit(0)
	if err != nil || m.ExitStage == 0 {
		return Part{Model: own}, err
	}
	exit, err := file.cutExit(m.ExitStage)
	if err != nil {
		return Part{}, fmt.Errorf("model %s: exit_stage: %d: %s: %w", m.Name, m.ExitStage, m.ONNXPath, err)
	}

	// What both read of the file is told by name: a constant has one.
	p := Part{Model: exit}
	for i := range exit.Graph.Initializers {
		if t := &exit.Graph.Initializers[i]; own.Graph.Initializer(t.Name) != nil {
			p.SharedBytes += int64(len(t.Raw))
		}
	}
	return p, nil
}

// cutExit returns a model of the nodes that lead to the outputs of exit k, which get their names without the suffix; 0
// means the outputs that are no exit's.
func (m *Model) cutExit(k int) (*Model, error) {
	suffix := ""
	if k > 0 {
		suffix = ExitSuffix(k)
	}

	g := &Graph{Name: m.Graph.Name + suffix, Inputs: m.Graph.Inputs}
	rename := map[string]string{}
	for _, v := range m.Graph.Outputs {
		short, is := strings.CutSuffix(v.Name, suffix)
		if !is || isExitOutput(short) {
			continue
		}
		rename[v.Name] = short
		v.Name = short
		g.Outputs = append(g.Outputs, v)
	}
	if len(g.Outputs) == 0 {
		return nil, fmt.Errorf("the graph has no output whose name ends in %q; it has %s", suffix, namesOf(m.Graph.Outputs))
	}

	g.keepNeeded(m.Graph, rename)
	return &Model{IRVersion: m.IRVersion, Producer: m.Producer, Opsets: m.Opsets, Graph: g}, g.Check()
}

// keepNeeded takes over the nodes and constants of a graph that outputs need; rename gives those their names in g.
func (g *Graph) keepNeeded(of *Graph, rename map[string]string) {
	needed := map[string]bool{}
	for name := range rename {
		needed[name] = true
	}

	// Nodes stand in topological order: from the last to the first, all readers of a value come before it.
	for i := len(of.Nodes) - 1; i >= 0; i-- {
		n := of.Nodes[i]
		if !slices.ContainsFunc(n.Outputs, func(name string) bool { return name != "" && needed[name] }) {
			continue
		}
		for _, name := range n.Inputs {
			needed[name] = true
		}
		for _, name := range n.outerNames() {
			needed[name] = true
		}

		n.Outputs = slices.Clone(n.Outputs)
		for k, name := range n.Outputs {
			if short, ok := rename[name]; ok {
				n.Outputs[k] = short
			}
		}
		g.Nodes = append(g.Nodes, n)
	}
	slices.Reverse(g.Nodes)

	// Constants keep their order, and with it the graph its text.
	for _, t := range of.Initializers {
		if needed[t.Name] {
			g.Initializers = append(g.Initializers, t)
		}
	}
	for _, v := range of.Values {
		if needed[v.Name] {
			g.Values = append(g.Values, v)
		}
	}
}

// outerNames are the names that graphs within a node read; some may be their own.
func (n *Node) outerNames() (names []string) {
	for _, a := range n.Attrs {
		for _, sub := range append([]*Graph{a.G}, a.Graphs...) {
			if sub == nil {
				continue
			}
			for i := range sub.Nodes {
				names = append(append(names, sub.Nodes[i].Inputs...), sub.Nodes[i].outerNames()...)
			}
			for _, v := range sub.Outputs {
				names = append(names, v.Name)
			}
		}
	}
	return names
}
