package app

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	graph "downbeat.dev/core/app"
	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
)

// Platform is the platform of an application in lists of models.
const Platform = "ensemble"

// textsMax is the space for the texts of one frame.
const textsMax = 64 << 10

// Set is a gateway's applications. They look like models, with one payload for all inputs and one for all outputs. A
// list is padded with zeros to its largest length. The output NAME_count, INT32, is the number of elements, also for
// outputs that may be missing.
type Set struct{ all []*served }

// served is one application of a Set.
type served struct {
	app     *App
	ready   *frontend.Model // description while all its models are ready
	unready *frontend.Model // description otherwise
	counted []bool          // by output: a count follows
}

// NewSet describes applications as models. Their names must differ.
func NewSet(apps ...*App) (*Set, error) {
	s := &Set{}
	for _, a := range apps {
		if s.findApp(a.graph.Name) != nil {
			return nil, fmt.Errorf("application %q is there twice", a.graph.Name)
		}
		one, err := describeApp(a)
		if err != nil {
			return nil, fmt.Errorf("application %q: %w", a.graph.Name, err)
		}
		s.all = append(s.all, one)
	}

	slices.SortFunc(s.all, func(a, b *served) int { return cmp.Compare(a.app.graph.Name, b.app.graph.Name) })
	return s, nil
}

func describeApp(a *App) (*served, error) {
	g := a.graph
	s := &served{app: a, counted: make([]bool, len(g.Outputs))}
	info := model.Info{ID: math.MaxUint32, Name: g.Name, Version: "1", SLO: int64(g.Latency), BatchMax: uint32(max(g.BatchMax, 1)),
		Platform: Platform, Unbatched: g.BatchMax == 0, Config: g.Text}
	for i := range g.Inputs {
		info.Inputs = append(info.Inputs, g.Inputs[i].Tensor)
	}

	if err := s.describeOutputs(&info); err != nil {
		return nil, err
	}

	in, err := model.NewLayout(info.Inputs)
	if err != nil {
		return nil, err
	}
	out, err := model.NewLayout(info.Outputs)
	if err != nil {
		return nil, err
	}

	m := frontend.Model{ModelInfo: info, InputBytes: in.Bytes, OutputBytes: out.Bytes}

	// Texts have no fixed size, so limit them to keep a request's buffer finite.
	if in.Varies {
		m.InputBytes, m.InputMax = -1, uint32(in.Bytes+textsMax)
	}
	if out.Varies {
		m.OutputBytes = -1
	}

	// Make both descriptions once, so that describing a model allocates nothing.
	ready := m
	ready.Ready = true
	s.ready, s.unready = &ready, &m
	return s, nil
}

// describeOutputs describes the outputs of a frame, with a count for each output whose length varies.
func (s *served) describeOutputs(info *model.Info) error {
	g := s.app.graph
	for i, o := range g.Outputs {
		// Clients see fixed shapes: a list has its largest length.
		at := g.Answer[i]
		t := g.Tensors[at].Tensor
		t.Name = o.Name
		isList := g.Lists[at] != graph.Single
		if isList {
			t.Shape = append([]int64{int64(g.Elements(at))}, t.Shape...)
		}
		info.Outputs = append(info.Outputs, t)

		if s.counted[i] = isList || g.Maybe[at]; s.counted[i] {
			info.Outputs = append(info.Outputs, model.Tensor{Name: o.Name + "_count", Datatype: model.Int32, Shape: []int64{1}})
		}
	}

	// Counts take their names from outputs, so two names may collide.
	for i := range info.Outputs {
		if name := info.Outputs[i].Name; slices.ContainsFunc(info.Outputs[:i], func(t model.Tensor) bool { return t.Name == name }) {
			return fmt.Errorf("output %q is there twice, once as a count", name)
		}
	}
	return nil
}

func (s *Set) findApp(name string) *served {
	for _, one := range s.all {
		if one.app.graph.Name == name {
			return one
		}
	}
	return nil
}

// App returns the application of a name, or nil. A nil Set has none.
func (s *Set) App(name string) *App {
	if s == nil {
		return nil
	}
	if one := s.findApp(name); one != nil {
		return one.app
	}
	return nil
}

// describeModel returns the present description of an application.
func (s *served) describeModel() *frontend.Model {
	for j := range s.app.steps {
		// Hooks run here and are always ready.
		step := &s.app.steps[j]
		if step.Model == "" {
			continue
		}
		if m := s.app.client.Model(step.Model, step.Version); m == nil || !m.Ready {
			return s.unready
		}
	}
	return s.ready
}

// Model describes an application; nil if there is none with that name and version.
func (s *Set) Model(name, version string) *frontend.Model {
	if one := s.findApp(name); one != nil && (version == "" || version == one.ready.Version) {
		return one.describeModel()
	}
	return nil
}

// Models describes all applications, by name.
func (s *Set) Models() (all []*frontend.Model) {
	for _, one := range s.all {
		all = append(all, one.describeModel())
	}
	return all
}

// Do runs an application for one request. The error is an *frontend.OutcomeError that names the stage, or wraps
// frontend.ErrInvalid.
func (s *Set) Do(ctx context.Context, r frontend.Request) (frontend.Result, error) {
	one := s.findApp(r.Model)
	if one == nil || r.Input == nil {
		return frontend.Result{}, fmt.Errorf("%w: application %q with an input: none is there", frontend.ErrInvalid, r.Model)
	}

	inputs, err := one.splitInputs(r.Input.Bytes())
	if err != nil {
		return frontend.Result{}, err
	}

	begun := time.Now()
	answer, err := one.app.Run(ctx, Frame{Inputs: inputs, Priority: r.Priority})
	if err != nil {
		return frontend.Result{}, one.outcome(ctx, err, begun)
	}
	defer answer.Release()
	return frontend.Result{Data: one.pack(answer), Elapsed: answer.Elapsed, Slack: answer.Slack}, nil
}

// splitInputs splits a payload into the inputs, which lie one after another in the order of the description.
func (s *served) splitInputs(payload []byte) (inputs [][]byte, err error) {
	rest := payload
	for i := range s.ready.Inputs {
		t := &s.ready.Inputs[i]
		n := t.RowBytes()
		if t.Varies() {
			n = model.TextsBytes(rest, t.RowElements())
		}

		if n < 0 || n > len(rest) {
			return nil, fmt.Errorf("%w: application %q: input of %d bytes: ends within %q", frontend.ErrInvalid, s.ready.Name, len(payload), t.Name)
		}
		inputs = append(inputs, rest[:n:n])
		rest = rest[n:]
	}
	return inputs, nil
}

// outcome returns the error of a frame in the form of a model's, with the application's name.
func (s *served) outcome(ctx context.Context, err error, begun time.Time) error {
	if errors.Is(err, ErrInvalid) {
		return fmt.Errorf("%w: %w", frontend.ErrInvalid, err)
	}

	budget := s.app.graph.Latency
	if d, ok := ctx.Deadline(); ok {
		budget = d.Sub(begun)
	}

	o := &frontend.OutcomeError{Reason: model.ExecutionFailed, Model: s.ready.Name, Budget: budget, Elapsed: time.Since(begun), Cause: err}
	var of *frontend.OutcomeError

	// A stage's own outcome is more specific than the frame's deadline.
	switch {
	case errors.As(err, &of):
		o.Reason, o.Local = of.Reason, of.Local
	case errors.Is(err, context.DeadlineExceeded):
		o.Reason, o.Local = model.DeadlineCannotBeMet, true
	case errors.Is(err, context.Canceled):
		o.Reason, o.Local = model.Canceled, true
	}
	return o
}

// pack concatenates the outputs.
func (s *served) pack(a *Answer) []byte {
	out := make([]byte, 0, max(s.ready.OutputBytes, 0))
	k := 0
	for i, v := range a.Outputs {
		t := &s.ready.Outputs[k]
		begin := len(out)
		for _, element := range v {
			out = append(out, element...)
		}

		// A missing element is zeros; a missing text is a length of 0.
		size := t.RowBytes()
		if t.Varies() {
			elements, _ := model.CountTexts(out[begin:])
			size = len(out) - begin + (t.RowElements()-elements)*model.TextLengthBytes
		}
		out = append(out, make([]byte, size-(len(out)-begin))...)
		k++

		if s.counted[i] {
			out = binary.LittleEndian.AppendUint32(out, uint32(len(v)))
			k++
		}
	}
	return out
}
