package app

import (
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/model"
)

// Single marks a tensor that is not in a list, or a stage that runs once per frame.
const Single = -1

// Signature describes the model or family of a stage.
type Signature struct {
	Inputs, Outputs []model.Tensor
	SLO             time.Duration // of its requests; 0: unknown
	Least           time.Duration // time of a single request on the fastest GPU; 0: not measured
	Sequence        bool          // its requests are steps of sequences: a session's frames form one sequence
}

// Catalog finds a model or family. Its error lists the available ones.
type Catalog func(name, version string) (Signature, error)

// Graph is an application whose stages fit each other and their models.
type Graph struct {
	*Application
	Tensors []Tensor // the frame's inputs first, then the steps' results
	Lists   []int    // by tensor: the tensor to whose elements its own correspond, or Single
	Answer  []int    // by output: its tensor
	Steps   []Step   // each after the steps that it needs
	Maybe   []bool   // by tensor: it may be missing, as the result of an optional step
}

// Step is a stage of a Graph.
type Step struct {
	*Stage
	Signature       // of its model
	In        []int // tensors, in the order of the model's inputs or of the hook's ports
	Out       []int // tensors, in the same order; Single: unused
	List      int   // the tensor for each of whose elements it runs, or Single
	After     []int32
}

// Elements returns the largest number of elements of a tensor; 1 if it is single.
func (g *Graph) Elements(tensor int) int {
	if list := g.Lists[tensor]; list != Single {
		return g.Tensors[list].Most
	}
	return 1
}

// FanOut returns a step's mean number of requests per frame.
func (g *Graph) FanOut(step int) float64 {
	if list := g.Steps[step].List; list != Single {
		return g.Tensors[list].Mean
	}
	return 1
}

// fitTensor compares a tensor with the wanted one. A dimension of -1 fits any size and takes the other side's.
func (g *Graph) fitTensor(at int, want *model.Tensor) error {
	have := &g.Tensors[at]
	fits := have.Datatype == want.Datatype && len(have.Shape) == len(want.Shape)
	for i := range have.Shape {
		fits = fits && (have.Shape[i] == want.Shape[i] || have.Shape[i] == -1 || want.Shape[i] == -1)
	}
	if !fits {
		return fmt.Errorf("tensor %q is %s %v: want %s %v", have.Name, have.Datatype, have.Shape, want.Datatype, want.Shape)
	}

	// Copy the shape before changing it: the array may be the caller's.
	if slices.Contains(have.Shape, -1) {
		have.Shape = slices.Clone(have.Shape)
		for i, n := range want.Shape {
			have.Shape[i] = max(have.Shape[i], n)
		}
	}
	return nil
}

func named(t model.Tensor, name string) model.Tensor {
	t.Name = name
	return t
}

func hasTensor(all []model.Tensor, name string) bool {
	return slices.ContainsFunc(all, func(t model.Tensor) bool { return t.Name == name })
}
