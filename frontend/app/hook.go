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

// Value is a tensor of one frame: the elements of a list, or one. Elements are row-major, little-endian.
type Value [][]byte

// Call is one call of a hook, for one frame.
type Call struct {
	In  []Value // in the order of the step's Inputs; they must not be written to, nor kept after the call
	Out []Value // to be filled in, in the order of the step's Outputs
	// State is what the hook left here at the session's last frame. Calls of one session come one after another; of
	// frames without a session it is lost.
	State any
}

// Hook is a stage that runs in the frontend. It is called by many goroutines at once.
type Hook func(ctx context.Context, c *Call) error

// Step is the stage of an application that a hook is made for.
type Step struct {
	Name    string
	With    map[string]string     // its settings
	Inputs  []frontend.TensorInfo // what it takes, in the order of a Call's In
	Outputs []OutputInfo          // what it has to give, in the order of a Call's Out
}

// OutputInfo describes what a hook gives. Its shape is that of an element where it is a list.
type OutputInfo struct {
	frontend.TensorInfo
	Most int // elements of the list; 0: it is no list
}

// NewHook makes the hook of a step, and refuses inputs, outputs and settings (With) that it cannot work with.
type NewHook func(s *Step) (Hook, error)

// describeStep tells a hook of its stage.
func describeStep(s *graph.Step) *Step {
	d := &Step{Name: s.Name, With: s.With, Inputs: s.Inputs}
	for _, t := range s.Declares {
		d.Outputs = append(d.Outputs, OutputInfo{TensorInfo: t.Tensor, Most: t.Most})
	}
	return d
}

// builtin are the hooks that every App has.
var builtin = map[string]NewHook{"crop": newCrop}

func findHook(own map[string]NewHook, name string) (NewHook, error) {
	// A caller's own hook takes the place of a built-in one of its name.
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

// callHook runs a step's hook and holds what it gives against what it declared.
func (r *run) callHook(ctx context.Context, j int) (err error) {
	s := &r.app.steps[j]
	c := Call{In: make([]Value, len(s.In)), Out: make([]Value, len(s.Outputs))}
	for i, at := range s.In {
		c.In[i] = r.values[at]
	}

	// The session's frames come in turn (runStep), so that a hook sees its own last state.
	if r.stream != nil {
		state := &r.stream.states[j]
		c.State = state.value
		defer func() { state.value = c.State }()
	}

	// A fault of one hook is one frame's.
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

		// An output that nobody needs has no place.
		if at := s.Out[i]; at != graph.Single {
			r.values[at] = c.Out[i]
		}
	}
	return nil
}

// checkValue compares what a hook gave with what it declared: a list of at most most elements; 0: no list.
func checkValue(t *frontend.TensorInfo, most int, v Value) error {
	// A tensor that is no list has one element always.
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
