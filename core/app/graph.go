package app

import (
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/model"
)

// Single marks what is not of a list: a tensor, or a stage that is asked once for a frame.
const Single = -1

// Signature is what is known of a model or family that a stage asks.
type Signature struct {
	Inputs, Outputs []model.Tensor
	SLO             time.Duration // of its requests; 0: none is known
	Least           time.Duration // that a single request takes where it is fastest; 0: not measured
	Sequence        bool          // its requests are steps of sequences: the frames of a session are those of one
}

// Catalog finds a model or family. The error names what there is instead.
type Catalog func(name, version string) (Signature, error)

// Graph is an application whose stages fit each other and the models that they ask.
type Graph struct {
	*Application
	Tensors []Tensor // the frame's inputs first, then what the steps give
	Lists   []int    // by tensor: the tensor whose elements it has one of each for, or Single
	Answer  []int    // by output: its tensor
	Steps   []Step   // each comes after those that it needs
	Maybe   []bool   // by tensor: an optional step may leave it out
}

// Step is a stage in its place.
type Step struct {
	*Stage
	Signature       // of its model
	In        []int // tensors, in the order of the model's inputs; a hook's in the order of its ports
	Out       []int // tensors, in the same order; Single: nobody names it
	List      int   // the tensor for each of whose elements it runs, or Single
	After     []int32
}

// Elements tells how many elements a tensor has at most; 1 where it is single.
func (g *Graph) Elements(tensor int) int {
	if list := g.Lists[tensor]; list != Single {
		return g.Tensors[list].Most
	}
	return 1
}

// FanOut is how many requests of a step's a frame makes on average.
func (g *Graph) FanOut(step int) float64 {
	if list := g.Steps[step].List; list != Single {
		return g.Tensors[list].Mean
	}
	return 1
}

// Resolve checks an application against the models that there are, and puts its stages in order. An error names the
// stage, the field, the value and what is allowed.
func Resolve(a Application, models Catalog) (*Graph, error) {
	if err := a.CheckNames(); err != nil {
		return nil, err
	}
	r := &resolving{g: &Graph{Application: &a}, source: map[string]int{}}

	// What is learned of the inputs is the graph's to know, not the caller's.
	a.Inputs = slices.Clone(a.Inputs)
	for _, t := range a.Inputs {
		if t.Most != 0 {
			return nil, a.refuseField(fmt.Sprintf("input %q: most", t.Name), t.Most, "none: a frame's inputs are single")
		}
		if err := r.addTensor(t, Single, false); err != nil {
			return nil, err
		}
	}

	// A stage is placed as soon as all that it takes is there. Whoever waits in the end waits for a cycle, or for
	// what nobody gives.
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
		return nil, r.blame(waiting)
	}

	if err := r.findAnswer(); err != nil {
		return nil, err
	}
	return r.g, r.g.checkLatency()
}

// resolving is one Resolve under way.
type resolving struct {
	g      *Graph
	source map[string]int // tensors by name
	giver  []int32        // by tensor: the step that gives it, Single for the frame's
}

// addTensor takes a tensor up.
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

	// A list that a hook gives is as long as it is: its elements are its own.
	at := len(g.Tensors)
	if t.Most > 0 {
		list = at
	}
	r.source[t.Name] = at
	g.Tensors, g.Lists, g.Maybe = append(g.Tensors, t), append(g.Lists, list), append(g.Maybe, maybe)
	// A step is appended once its inputs are joined; for a frame's inputs there is none, and that is Single.
	r.giver = append(r.giver, int32(len(g.Steps))-1)
	return nil
}

// ready reports whether all that a stage takes has been given.
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

		// An optional stage may end without a result, which a stage that must run cannot do without.
		if g.Maybe[at] && !s.Optional {
			return s.refuseField(g.Application, "input", f.Tensor, "what no optional stage gives, or the stage to be optional, too")
		}

		// A batch row is one request: elements of another list have no row of this step's to go to.
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

// placeHook joins a hook with what it takes, in the order of its ports.
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

// placeModel joins a model with what it takes: every input needs a tensor that is like it.
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

	// What the stage names beyond the model's tensors is a misspelling, and would be lost silently.
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

// addResults takes up what a step gives.
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

	// By now every stage has said what it wants of the frame.
	for at := range g.Inputs {
		if slices.Contains(g.Tensors[at].Shape, -1) {
			return g.refuseField(fmt.Sprintf("input %q: shape", g.Tensors[at].Name), g.Tensors[at].Shape, "a stage that says how large it is, or fixed dimensions")
		}
		g.Inputs[at] = g.Tensors[at]
	}
	return nil
}

// fitTensor compares a tensor with what is wanted of it. Dimensions of -1 fit any, and learn of the other side's.
func (g *Graph) fitTensor(at int, want *model.Tensor) error {
	have := &g.Tensors[at]
	fits := have.Datatype == want.Datatype && len(have.Shape) == len(want.Shape)
	for i := range have.Shape {
		fits = fits && (have.Shape[i] == want.Shape[i] || have.Shape[i] == -1 || want.Shape[i] == -1)
	}
	if !fits {
		return fmt.Errorf("tensor %q is %s %v: want %s %v", have.Name, have.Datatype, have.Shape, want.Datatype, want.Shape)
	}

	// The shape's array may be the caller's, so it is copied before it is filled in.
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
