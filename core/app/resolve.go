package app

import (
	"fmt"
	"slices"
)

// Resolve checks an application against the available models and orders its stages. An error names the stage, the
// field, the value and what is allowed.
func Resolve(a Application, models Catalog) (*Graph, error) {
	if err := a.CheckNames(); err != nil {
		return nil, err
	}
	r := &resolving{g: &Graph{Application: &a}, source: map[string]int{}}

	// Clone: sizes that the stages give to the inputs belong to the graph, not to the caller.
	a.Inputs = slices.Clone(a.Inputs)
	for _, t := range a.Inputs {
		if t.Most != 0 {
			return nil, a.refuseField(fmt.Sprintf("input %q: most", t.Name), t.Most, "none: a frame's inputs are single")
		}
		if err := r.addTensor(t, Single, false); err != nil {
			return nil, err
		}
	}

	// Place each stage as soon as its inputs exist. Stages that remain form a cycle or need a tensor that no stage
	// gives.
	waiting := make([]*Stage, len(a.Stages))
	for j := range a.Stages {
		waiting[j] = &a.Stages[j]
	}
	for placed := true; placed && len(waiting) > 0; {
		placed = false
		for j, s := range waiting {
			if !r.ready(s) {
				continue
			}
			if err := r.placeStage(s, models); err != nil {
				return nil, err
			}
			waiting, placed = slices.Delete(waiting, j, j+1), true
			break
		}
	}
	if len(waiting) > 0 {
		return nil, r.explainUnplaced(waiting)
	}

	if err := r.findAnswer(); err != nil {
		return nil, err
	}
	return r.g, r.g.checkLatency()
}

// resolving is the state of one Resolve.
type resolving struct {
	g      *Graph
	source map[string]int // tensors by name
	giver  []int32        // by tensor: the step that outputs it, Single for the frame's
}

// addTensor adds a tensor to the graph.
func (r *resolving) addTensor(t Tensor, list int, maybe bool) error {
	g := r.g
	switch _, twice := r.source[t.Name]; {
	case twice:
		return g.refuseField("tensor", t.Name, "to be given once: by the frame, or by one stage")
	case !isName(t.Name):
		return g.refuseField("tensor", t.Name, nameRule)
	case len(g.Tensors) == TensorsMax:
		return g.refuseField("tensors", len(g.Tensors)+1, fmt.Sprintf("at most %d", TensorsMax))
	}

	// A list from a hook has a length of its own, so its elements correspond to itself.
	at := len(g.Tensors)
	if t.Most > 0 {
		list = at
	}
	r.source[t.Name] = at
	g.Tensors, g.Lists, g.Maybe = append(g.Tensors, t), append(g.Lists, list), append(g.Maybe, maybe)
	// A step is appended after its inputs are joined. For the frame's inputs no step exists yet, which gives Single.
	r.giver = append(r.giver, int32(len(g.Steps))-1)
	return nil
}

// ready reports whether all inputs of a stage exist.
func (r *resolving) ready(s *Stage) bool {
	for _, f := range s.Takes {
		if _, ok := r.source[f.Tensor]; !ok {
			return false
		}
	}
	return true
}

// placeStage makes a stage the next step.
func (r *resolving) placeStage(s *Stage, models Catalog) error {
	g := r.g
	step := Step{Stage: s, List: Single}
	if s.Each != "" {
		list, ok := r.source[s.Each]
		if !ok || g.Lists[list] == Single {
			return s.refuseField(g.Application, "each", s.Each, "a list that a hook gives, or one as long")
		}
		step.List = g.Lists[list]
	}

	maybe := s.Optional

	for _, f := range s.Takes {
		at := r.source[f.Tensor]
		if before := r.giver[at]; before != Single && !slices.Contains(step.After, before) {
			step.After = append(step.After, before)
		}

		// An optional stage may give no result, so a stage that must run cannot depend on it.
		if g.Maybe[at] && !s.Optional {
			return s.refuseField(g.Application, "input", f.Tensor, "what no optional stage gives, or the stage to be optional, too")
		}

		// Each element is one request, so it can only be combined with elements of the same list.
		if list := g.Lists[at]; s.Model != "" && list != Single && list != step.List {
			return s.refuseField(g.Application, "input", f.Tensor, "a single tensor, or the list that the stage runs for each of")
		}
	}

	if step.List != Single && !slices.ContainsFunc(s.Takes, func(f Flow) bool { return g.Lists[r.source[f.Tensor]] == step.List }) {
		return s.refuseField(g.Application, "each", s.Each, "a list that is among the stage's inputs")
	}

	var err error
	if s.Model == "" {
		err = r.placeHook(&step)
	} else if step.Signature, err = models(s.Model, s.Version); err != nil {
		err = fmt.Errorf("application %q: stage %q: model: %w", g.Name, s.Name, err)
	} else if step.Sequence && s.Each != "" {
		err = s.refuseField(g.Application, "each", s.Each, fmt.Sprintf("nothing: model %q keeps sequences, of which a frame is one step", s.Model))
	} else {
		err = r.placeModel(&step)
	}
	if err != nil {
		return err
	}

	g.Steps = append(g.Steps, step)
	return r.addResults(&g.Steps[len(g.Steps)-1], maybe)
}

// placeHook joins a hook with its inputs, in the order of its ports.
func (r *resolving) placeHook(step *Step) error {
	for i, f := range step.Takes {
		if slices.ContainsFunc(step.Takes[:i], func(o Flow) bool { return o.Port == f.Port }) {
			return step.refuseField(r.g.Application, "input", f.Port, "each name once")
		}

		at := r.source[f.Tensor]
		if slices.Contains(r.g.Tensors[at].Shape, -1) {
			return step.refuseField(r.g.Application, "input", f.Tensor, "a tensor of fixed size")
		}
		step.In = append(step.In, at)
		step.Inputs = append(step.Inputs, named(r.g.Tensors[at].Tensor, f.Port))
	}

	for i, t := range step.Declares {
		step.Outputs = append(step.Outputs, named(t.Tensor, step.Gives[i].Port))
	}
	return nil
}

// placeModel joins a model with its inputs. Each needs a matching tensor.
func (r *resolving) placeModel(step *Step) error {
	g := r.g
	for _, want := range step.Inputs {
		i := slices.IndexFunc(step.Takes, func(f Flow) bool { return f.Port == want.Name })
		if i < 0 {
			return step.refuseField(g.Application, "inputs", portNames(step.Takes), fmt.Sprintf("also %q, which model %q needs", want.Name, step.Model))
		}

		at := r.source[step.Takes[i].Tensor]
		if err := g.fitTensor(at, &want); err != nil {
			return fmt.Errorf("application %q: stage %q: input %q: %w", g.Name, step.Name, want.Name, err)
		}
		step.In = append(step.In, at)
	}

	// A name that is no tensor of the model is a misspelling, which must not be ignored.
	for i, f := range step.Takes {
		if slices.ContainsFunc(step.Takes[:i], func(o Flow) bool { return o.Port == f.Port }) || !hasTensor(step.Inputs, f.Port) {
			return step.refuseField(g.Application, "input", f.Port, fmt.Sprintf("each of model %q's inputs once: %s", step.Model, listTensors(step.Inputs)))
		}
	}
	for i, f := range step.Gives {
		if slices.ContainsFunc(step.Gives[:i], func(o Flow) bool { return o.Port == f.Port }) || !hasTensor(step.Outputs, f.Port) {
			return step.refuseField(g.Application, "output", f.Port, fmt.Sprintf("each of model %q's outputs at most once: %s", step.Model, listTensors(step.Outputs)))
		}
	}
	return nil
}

// addResults adds the tensors that a step gives.
func (r *resolving) addResults(step *Step, maybe bool) error {
	for k, have := range step.Outputs {
		i := slices.IndexFunc(step.Gives, func(f Flow) bool { return f.Port == have.Name })
		if i < 0 {
			step.Out = append(step.Out, Single)
			continue
		}

		t := Tensor{Tensor: named(have, step.Gives[i].Tensor)}
		if step.Declares != nil {
			t = step.Declares[k]
			t.Name = step.Gives[i].Tensor
		}

		step.Out = append(step.Out, len(r.g.Tensors))
		if err := r.addTensor(t, step.List, maybe); err != nil {
			return err
		}
	}
	return nil
}

// findAnswer finds the tensors of the answer.
func (r *resolving) findAnswer() error {
	g := r.g
	for _, o := range g.Outputs {
		at, ok := r.source[o.Of]
		if !ok {
			return g.refuseField(fmt.Sprintf("output %q: of", o.Name), o.Of, "a tensor that the frame or a stage gives")
		}
		if o.Declared.Datatype != "" {
			if err := g.fitTensor(at, &o.Declared); err != nil {
				return fmt.Errorf("application %q: output %q: %w", g.Name, o.Name, err)
			}
		}
		g.Answer = append(g.Answer, at)
	}

	// All stages have been placed, so every dimension of the inputs should be known.
	for at := range g.Inputs {
		if slices.Contains(g.Tensors[at].Shape, -1) {
			return g.refuseField(fmt.Sprintf("input %q: shape", g.Tensors[at].Name), g.Tensors[at].Shape, "a stage that says how large it is, or fixed dimensions")
		}
		g.Inputs[at] = g.Tensors[at]
	}
	return nil
}
