package executor

import (
	"fmt"
	"slices"
	"strings"

	"downbeat.dev/cuda"
	"downbeat.dev/cuda/kernels"
	"downbeat.dev/cuda/layers"
	"downbeat.dev/cuda/residency"
)

// launch is a step with its kernel.
type launch struct {
	layers.Step
	kernel cuda.Kernel
}

// option is one way to do a step.
type option struct {
	label     string // distinguishes it from the other options of its step
	launches  []launch
	workspace int64 // bytes that must be free while it runs
	counters  bool  // it needs zeroed counters
}

// The words of a Tensor that hold its workspace and its counters.
const partialWord, countersWord = 5, 6

// countersName is the parameter that holds the counters of split products: zero between launches.
const countersName = "counters"

// chooseLaunches turns p's steps into launches, each by its best option on this device.
func (m *Model) chooseLaunches(p *plan) error {
	taken := make([][]option, len(p.Layers))
	var workspace int64
	counters := false

	for i := range p.Layers {
		m.yieldRuntime(func() {}) // trials take time on the device
		for j := range p.Layers[i].Steps {
			o, err := m.r.optionFor(p.Plan, &p.Layers[i].Steps[j])
			if err != nil {
				return fmt.Errorf("layer %q: %w", p.Layers[i].Name, err)
			}
			workspace, counters = max(workspace, o.workspace), counters || o.counters
			taken[i] = append(taken[i], o)
		}
	}

	// Layers run one after another, so one workspace as large as the largest serves all.
	work, zeros, err := m.addRoom(p, workspace, counters)
	if err != nil {
		return err
	}

	p.launches = make([][]launch, len(p.Layers))
	for i, options := range taken {
		for k := range options {
			options[k].placeRoom(work, zeros)
			// Run loads a layer's Params before it, so the counters belong there too.
			if options[k].counters {
				p.Layers[i].Params = append(p.Layers[i].Params, p.Buffers[zeros].Index)
			}
			p.launches[i] = append(p.launches[i], options[k].launches...)
		}
	}
	return nil
}

// Choice is the option chosen for one launch of a plan.
type Choice struct {
	Layer, Op, Kernel string
}

// Choices returns the launches of a batch size: kernels of this module, or cublasLt and cudnn.
func (m *Model) Choices(batch int) (all []Choice, err error) {
	p, err := m.planFor(batch)
	if err != nil {
		return nil, err
	}

	for i := range p.launches {
		for j := range p.launches[i] {
			all = append(all, Choice{p.Layers[i].Name, p.Layers[i].Op, p.launches[i][j].Kernel})
		}
	}
	return all, nil
}

// addRoom adds to the plan a workspace after its activations, and counters; it returns their buffers.
func (m *Model) addRoom(p *plan, workspace int64, counters bool) (work, zeros int, err error) {
	if workspace > 0 {
		p.Buffers = append(p.Buffers, layers.Buffer{Kind: layers.Activation, Bytes: workspace, Last: len(p.Layers) - 1, Offset: p.ActivationBytes})
		work = len(p.Buffers) - 1
		p.ActivationBytes += workspace
	}

	if !counters {
		return work, 0, nil
	}

	// All plans of a model share one block of counters, because every launch leaves zeros.
	data := make([]byte, 4*kernels.Counters)
	if _, ok := m.params[countersName]; !ok {
		id, err := m.r.store.Add(residency.Content{Name: m.graph.Name + "/" + countersName, Kind: residency.Parameters, Bytes: int64(len(data)), SLO: m.slo}, data)
		if err != nil {
			return 0, 0, fmt.Errorf("counters: %w", err)
		}
		m.params[countersName] = place{id, 0}
	}

	p.Params = append(p.Params, layers.Param{Name: countersName, Data: data})
	p.Buffers = append(p.Buffers, layers.Buffer{Kind: layers.Parameter, Bytes: int64(len(data)), Index: len(p.Params) - 1})
	return work, len(p.Buffers) - 1, nil
}

// placeRoom enters the workspace and the counters in the launches that need them.
func (o *option) placeRoom(work, zeros int) {
	for i := range o.launches {
		l := &o.launches[i]
		if o.workspace > 0 && l.Addresses > partialWord {
			l.Name(partialWord, work)
		}
		if o.counters && l.Addresses > countersWord {
			l.Name(countersWord, zeros)
		}
	}
}

// optionFor returns the option for a step: the one chosen before for the same shape, otherwise the best one.
func (r *Runtime) optionFor(p *layers.Plan, s *layers.Step) (option, error) {
	all, err := r.listOptions(s)
	if err != nil {
		return option{}, err
	}
	if len(all) == 1 {
		return all[0], nil
	}

	// Steps of one shape use the same option, also in other models.
	key := s.Shape()
	for i := range all {
		if all[i].label == r.chosen[key] {
			return all[i], nil
		}
	}

	// Without a measurement use the most promising option.
	best := 0
	if r.cfg.Prefer != "" {
		best = max(slices.IndexFunc(all, func(o option) bool { return strings.HasPrefix(o.label, r.cfg.Prefer) }), 0)
	} else if r.cfg.Tune {
		best = r.tuneStep(p, s, all)
	}

	r.chosen[key] = all[best].label
	return all[best], nil
}

// listOptions returns every option of a step, the most promising first; the last is the step's own kernel.
func (r *Runtime) listOptions(s *layers.Step) (all []option, err error) {
	if all, err = r.libraryOptions(s); err != nil {
		return nil, err
	}

	for _, v := range r.kernels.Variants(s.Kernel, s.Params) {
		k, ok := r.kernels.Kernel(v.Name)
		if !ok {
			continue
		}
		step := layers.Step{Kernel: v.Name, Grid: v.Grid, Block: v.Block, Shared: v.Shared, Params: v.Params, Addresses: v.Addresses}
		all = append(all, option{label: fmt.Sprintf("%s/%d", v.Name, v.Grid.Y), launches: []launch{{step, k}}, workspace: v.Workspace, counters: v.Workspace > 0})
	}

	// The step's own kernel supports every shape, so there is always one option.
	k, ok := r.kernels.Kernel(s.Kernel)
	if !ok {
		return nil, fmt.Errorf("no kernel %q", s.Kernel)
	}
	return append(all, option{label: s.Kernel, launches: []launch{{*s, k}}}), nil
}
