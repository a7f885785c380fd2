package onnx

import "downbeat.dev/core/repo"

// Signature reads the inputs and outputs of a file, for repo.Options.
func Signature(path string) (repo.Graph, error) {
	m, err := Read(path)
	if err != nil {
		return repo.Graph{}, err
	}

	var g repo.Graph
	for _, v := range m.Graph.Inputs {
		if m.Graph.Initializer(v.Name) == nil { // old files list their constants among the inputs
			g.Inputs = append(g.Inputs, signatureOf(v))
		}
	}
	for _, v := range m.Graph.Outputs {
		if isExitOutput(v.Name) { // belongs to an exit, which has its own configuration
			continue
		}
		g.Outputs = append(g.Outputs, signatureOf(v))
	}
	return g, nil
}

func signatureOf(v Value) repo.GraphTensor {
	t := repo.GraphTensor{Name: v.Name, Datatype: v.Type.Datatype()}

	for _, d := range v.Dims {
		n := d.Size
		if d.Name != "" || n < 0 {
			n = -1
		}
		t.Dims = append(t.Dims, n)
	}
	return t
}
