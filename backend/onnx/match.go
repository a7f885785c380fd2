package onnx

import (
	"fmt"
	"strings"

	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
)

// Match checks that the graph has the tensors of the repository's config.pbtxt: names, types and shapes, after a
// batch dimension if the model is batched. Sizes that the graph leaves open fit any size.
func (g *Graph) Match(m *repo.Model) error {
	feed := g.FeedInputs()
	if len(feed) != len(m.Inputs) {
		return fmt.Errorf("config.pbtxt of %s names %d inputs, the graph wants %d: %s", m.Name, len(m.Inputs), len(feed), namesOf(feed))
	}

	// The configuration has its own datatypes and shapes; one difference makes the file invalid.
	for i, t := range m.Inputs {
		if err := matchTensor("input", feed, t.Name, t.Datatype, m.GraphInput(i), m.Batched); err != nil {
			return fmt.Errorf("config.pbtxt of %s: %w", m.Name, err)
		}
	}

	for i, t := range m.Outputs {
		if err := matchTensor("output", g.Outputs, t.Name, t.Datatype, m.GraphOutput(i), m.Batched); err != nil {
			return fmt.Errorf("config.pbtxt of %s: %w", m.Name, err)
		}
	}
	return nil
}

func matchTensor(what string, list []Value, name string, datatype model.Datatype, shape []int64, batched bool) error {
	for _, v := range list {
		if v.Name != name {
			continue
		}

		if v.Type != Undefined && v.Type.String() != string(datatype) {
			return fmt.Errorf("%s %q: data_type %s: the graph has %v", what, name, datatype, v.Type)
		}

		// A graph without a shape fits any.
		if v.Dims == nil {
			return nil
		}

		// The configuration omits the batch dimension; in the graph it must be open.
		dims := v.Dims
		if batched {
			if len(dims) == 0 || dims[0].Size >= 0 {
				return fmt.Errorf("%s %q: max_batch_size is above 0, but the graph's shape %s has no open first dimension", what, name, showDims(v.Dims))
			}
			dims = dims[1:]
		}

		fits := len(dims) == len(shape)
		for i := range shape {
			fits = fits && (dims[i].Size < 0 || dims[i].Size == shape[i])
		}
		if !fits {
			return fmt.Errorf("%s %q: dims %v: the graph has %s", what, name, shape, showDims(v.Dims))
		}
		return nil
	}
	return fmt.Errorf("%s %q: the graph has none of that name, but %s", what, name, namesOf(list))
}

func namesOf(list []Value) string {
	var s []string
	for _, v := range list {
		s = append(s, v.Name)
	}
	return strings.Join(s, ", ")
}

func showDims(dims []Dim) string {
	var s []string
	for _, d := range dims {
		switch {
		case d.Size >= 0:
			s = append(s, fmt.Sprint(d.Size))
		case d.Name != "":
			s = append(s, d.Name)
		default:
			s = append(s, "?")
		}
	}
	return "[" + strings.Join(s, " ") + "]"
}
