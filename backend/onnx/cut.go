package onnx

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
)

// ExitSuffix returns the suffix of the output names of early exit k, from 1, in a graph that holds a model and its
// exits.
func ExitSuffix(k int) string { return ".exit" + strconv.Itoa(k) }

// isExitOutput reports whether an output belongs to an exit.
func isExitOutput(name string) bool {
	at := strings.LastIndex(name, ".exit")
	if at < 0 {
		return false
	}
	_, err := strconv.ParseUint(name[at+len(".exit"):], 10, 16)
	return err == nil
}

// IsExitOutput reports whether an output of a model's file belongs to an exit: its name has the suffix, and the
// model's configuration does not name it.
func IsExitOutput(m *repo.Model, name string) bool {
	return isExitOutput(name) && !slices.ContainsFunc(m.Outputs, func(t model.Tensor) bool { return t.Name == name })
}

// Part is the part of a file's graph that one model runs; the file holds a model and its early exits.
type Part struct {
	*Model
	// Whole means that the file holds nothing else.
	Whole bool
	// SharedBytes are the bytes of the part's constants that the file's main model also reads; 0 for that model
	// itself.
	SharedBytes int64
}

// ReadPart reads the part of a file that a model of the repository runs: all of it, or, if the file has early exits,
// the nodes that lead to the model's own outputs. An exit's outputs get the names in its configuration.
func ReadPart(m *repo.Model) (Part, error) {
	file, err := readContents(m)
	if err != nil {
		return Part{}, err
	}

	// A file without exits runs as it is.
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

	// Shared constants are found by name, which is unique.
	p := Part{Model: exit}
	for i := range exit.Graph.Initializers {
		if t := &exit.Graph.Initializers[i]; own.Graph.Initializer(t.Name) != nil {
			p.SharedBytes += int64(len(t.Raw))
		}
	}
	return p, nil
}

func readContents(m *repo.Model) (*Model, error) {
	if m.File != nil {
		return Unmarshal(m.File)
	}
	return Read(m.ONNXPath)
}

// cutExit returns a model of the nodes that lead to the outputs of exit k, whose names lose the suffix; 0 means the
// outputs of no exit.
func (m *Model) cutExit(k int) (*Model, error) {
	suffix := ""
	if k > 0 {
		suffix = ExitSuffix(k)
	}

	// Outputs of other exits are left out, and those of this one lose the suffix.
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

// keepNeeded copies the nodes and constants of a graph that outputs need; rename maps outputs to their names in g.
func (g *Graph) keepNeeded(of *Graph, rename map[string]string) {
	needed := map[string]bool{}
	for name := range rename {
		needed[name] = true
	}

	// Nodes are in topological order: from the last to the first, all readers of a value come before it.
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

	// Constants keep their order, so that equal parts have equal bytes.
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

// outerNames returns the names that graphs within a node read; some may be their own.
func (n *Node) outerNames() (names []string) {
	for _, a := range n.Attrs {
		for _, sub := range append([]*Graph{a.G}, a.Graphs...) {
			if sub == nil {
				continue
			}

			// A graph within a node may read any name outside of it without listing it as an input.
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
