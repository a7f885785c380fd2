package app

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	graph "downbeat.dev/core/app"
	"downbeat.dev/frontend"
)

// Value is a tensor of one frame: the elements of a list, or a single element. Elements are row-major, little-endian.
type Value [][]byte

// Call is one call of a hook, for one frame.
type Call struct {
	In  []Value // in the order of the step's Inputs; read only, valid during the call
	Out []Value // set by the hook, in the order of the step's Outputs
	// State is the value that the hook left here at the session's previous frame. Calls of one session come one after
	// another. Without a session the state is lost.
	State any
}

// Hook is a stage that runs in the frontend. It is called concurrently.
type Hook func(ctx context.Context, c *Call) error

// Step is the stage of an application for which a hook is created.
type Step struct {
	Name    string
	With    map[string]string     // the hook's settings
	Inputs  []frontend.TensorInfo // in the order of a Call's In
	Outputs []OutputInfo          // in the order of a Call's Out
}

// OutputInfo describes an output of a hook. For a list, its shape is that of an element.
type OutputInfo struct {
	frontend.TensorInfo
	Most int // largest number of elements of a list; 0: no list
}

// NewHook creates the hook of a step. It returns an error for unsuitable inputs, outputs or settings (With).
type NewHook func(s *Step) (Hook, error)

// describeStep describes a stage to a hook.
func describeStep(s *graph.Step) *Step {
	d := &Step{Name: s.Name, With: s.With, Inputs: s.Inputs}
	for _, t := range s.Declares {
		d.Outputs = append(d.Outputs, OutputInfo{TensorInfo: t.Tensor, Most: t.Most})
	}
	return d
}

// builtin are the hooks of every App.
var builtin = map[string]NewHook{"crop": newCrop}

func findHook(own map[string]NewHook, name string) (NewHook, error) {
	// A caller's hook replaces the built-in one of the same name.
	if h := own[name]; h != nil {
		return h, nil
	}
	if h := builtin[name]; h != nil {
		return h, nil
	}

	names := append(slices.Collect(maps.Keys(own)), slices.Collect(maps.Keys(builtin))...)
	slices.Sort(names)
	return nil, fmt.Errorf("not known: want one of %s", strings.Join(slices.Compact(names), ", "))
}

// callHook runs a step's hook and checks its outputs against the declaration.
func (r *run) callHook(ctx context.Context, j int) (err error) {
	s := &r.app.steps[j]
	c := Call{In: make([]Value, len(s.In)), Out: make([]Value, len(s.Outputs))}
	for i, at := range s.In {
		c.In[i] = r.values[at]
	}

	// The session's frames come in turn (runStep), so the hook sees its own latest state.
	if r.stream != nil {
		state := &r.stream.states[j]
		c.State = state.value
		defer func() { state.value = c.State }()
	}

	// A panic of a hook fails only its frame.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: panic: %v", ErrHook, p)
		}
	}()
	if err := s.hook(ctx, &c); err != nil {
		return fmt.Errorf("%w: %w", ErrHook, err)
	}

	for i := range c.Out {
		declared := &s.Declares[i]
		if err := checkValue(&declared.Tensor, declared.Most, c.Out[i]); err != nil {
			return fmt.Errorf("%w: output %q: %w", ErrHook, declared.Name, err)
		}

		// An unused output has no tensor.
		if at := s.Out[i]; at != graph.Single {
			r.values[at] = c.Out[i]
		}
	}
	return nil
}

// checkValue checks a hook's output against its declaration: a list of at most most elements; 0: no list.
func checkValue(t *frontend.TensorInfo, most int, v Value) error {
	// A tensor that is no list has exactly one element.
	if most == 0 && len(v) != 1 {
		return fmt.Errorf("%d elements: want 1", len(v))
	}
	if len(v) > max(most, 1) {
		return fmt.Errorf("%d elements: want at most %d", len(v), most)
	}

	for i, element := range v {
		if len(element) != t.RowBytes() {
			return fmt.Errorf("element %d: %d bytes: want %d", i, len(element), t.RowBytes())
		}
	}
	return nil
}
