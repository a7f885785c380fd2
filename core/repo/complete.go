package repo

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"downbeat.dev/core/app"
	"downbeat.dev/core/model"
)

// Options are the options for reading a repository.
type Options struct {
	// Graph reads the inputs and outputs of an ONNX file, for models whose config.pbtxt is missing or omits them.
	// nil: every model must be described in full (Triton's strict model configuration).
	Graph func(path string) (Graph, error)
	// Config, if not empty, is read by OpenModel instead of the model's config.pbtxt.
	Config string
}

// OpenAll reads several repositories as one. A model that exists in two of them is not served at all, since it is
// unclear which one is meant.
func OpenAll(dirs []string, o Options) (*Repository, error) {
	all := &Repository{Dir: strings.Join(dirs, ",")}
	where := map[string]string{}
	twice := map[string]bool{}

	for _, dir := range dirs {
		r, err := OpenWith(dir, o)
		if err != nil {
			return nil, err
		}
		// Count models that could not be read, too: a broken copy must not hide behind a good one.
		for _, name := range r.everyName() {
			if other, known := where[name]; known && !twice[name] {
				twice[name] = true
				all.Errors = append(all.Errors, ModelError{Model: name, Err: fmt.Errorf("is in %s and in %s; want it in one repository", other, dir)})
			}
			where[name] = dir
		}
		all.Models, all.Errors = append(all.Models, r.Models...), append(all.Errors, r.Errors...)
		all.Applications = append(all.Applications, r.Applications...)
	}

	// Each repository's models are sorted; merge the lists in order.
	all.Models = slices.DeleteFunc(all.Models, func(m Model) bool { return twice[m.Name] })
	all.Applications = slices.DeleteFunc(all.Applications, func(a app.Application) bool { return twice[a.Name] })
	slices.SortStableFunc(all.Applications, func(a, b app.Application) int { return strings.Compare(a.Name, b.Name) })
	slices.SortStableFunc(all.Models, func(a, b Model) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// everyName returns the names of all models, good and bad, each once.
func (r *Repository) everyName() []string {
	names := append(r.Names(), r.applicationNames()...)
	for _, e := range r.Errors {
		if !slices.Contains(names, e.Model) {
			names = append(names, e.Model)
		}
	}
	return names
}

// Graph describes the tensors of an ONNX file.
type Graph struct{ Inputs, Outputs []GraphTensor }

// GraphTensor is one input or output of a graph.
type GraphTensor struct {
	Name     string
	Datatype model.Datatype // empty: a type outside the Open Inference Protocol
	Dims     []int64        // all dimensions; -1: unknown until run
}

// CompletedBatchMax is the max_batch_size of a model that omits it and whose graph has a batch dimension.
const CompletedBatchMax = 16

// needsGraph reports whether the configuration omits inputs or outputs.
func (c *Config) needsGraph() bool { return len(c.Inputs) == 0 || len(c.Outputs) == 0 }

// completeFromFile fills in inputs, outputs and the batch dimension from the file of the model's newest version.
// batchSaid means that the configuration sets max_batch_size.
func (c *Config) completeFromFile(dir string, batchSaid bool, o Options) error {
	all, err := listVersions(dir)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return fmt.Errorf("%s: has no version; want a directory named by a positive integer with %s in it", dir, c.ModelFile)
	}

	// Use the newest version: all versions of a model share one configuration.
	path := filepath.Join(dir, strconv.FormatInt(all[len(all)-1], 10), c.ModelFile)
	g, err := o.Graph(path)
	if err != nil {
		return err
	}

	if !batchSaid && g.isBatched() && c.unbatchedTensors() {
		c.BatchMax = CompletedBatchMax
	}

	if len(c.Inputs) == 0 {
		if c.Inputs, err = c.fromGraph("input", g.Inputs); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		c.graphInputs = true
	}
	if len(c.Outputs) == 0 {
		if c.Outputs, err = c.fromGraph("output", g.Outputs); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		c.graphOutputs = true
	}
	return nil
}

// isBatched reports whether the first dimension of every tensor is open, which marks the batch dimension in a graph.
func (g Graph) isBatched() bool {
	for _, list := range [][]GraphTensor{g.Inputs, g.Outputs} {
		for _, t := range list {
			// A fixed first dimension means that the graph was exported for a fixed batch, or has no batch dimension.
			if len(t.Dims) == 0 || t.Dims[0] >= 0 {
				return false
			}
		}
	}
	return true
}

// unbatchedTensors reports whether no tensor is described yet, so that no dims depend on the batch dimension.
func (c *Config) unbatchedTensors() bool { return len(c.Inputs) == 0 && len(c.Outputs) == 0 }

func (c *Config) fromGraph(what string, list []GraphTensor) ([]TensorConfig, error) {
	// A graph's file is untrusted, so its counts have the same limits as a configuration's.
	if len(list) == 0 || len(list) > tensorsMax {
		return nil, fmt.Errorf("the graph has %d %ss: want 1 to %d", len(list), what, tensorsMax)
	}

	var all []TensorConfig
	for _, t := range list {
		dims := t.Dims
		// The batch dimension comes first in the graph. Clients do not see it.
		if c.BatchMax > 0 {
			if len(dims) == 0 {
				return nil, fmt.Errorf("%s %q: max_batch_size is %d, and it has no dimensions", what, t.Name, c.BatchMax)
			}
			dims = dims[1:]
		}
		if err := checkGraphTensor(t, dims); err != nil {
			return nil, fmt.Errorf("%s %q: %w", what, t.Name, err)
		}

		// If the graph has no dimension, clients see one element, as in Triton.
		tensor := TensorConfig{Tensor: model.Tensor{Name: t.Name, Datatype: t.Datatype, Shape: dims}}
		if len(dims) == 0 {
			tensor.Shape, tensor.Reshape = []int64{1}, []int64{}
		}
		all = append(all, tensor)
	}
	return all, nil
}

func checkGraphTensor(t GraphTensor, dims []int64) error {
	if t.Datatype == "" {
		return errors.New("its type is not one of the protocol's")
	}
	for _, n := range dims {
		if n != model.OpenDim && n < 1 || n > elementsMax {
			return fmt.Errorf("dimensions %v: want sizes from 1 to %d; name others in config.pbtxt, or export the model with them", dims, elementsMax)
		}
	}
	if len(dims) > rankMax || countElements(dims) > elementsMax {
		return fmt.Errorf("dimensions %v: want at most %d of them and %d elements", dims, rankMax, elementsMax)
	}
	return nil
}
