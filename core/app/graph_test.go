package app

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
)

var (
	picture = []int64{96, 96, 3}
	cutout  = []int64{32, 48, 3}
)

// street is a catalogue of a detector and a classifier.
func street(name, _ string) (Signature, error) {
	switch name {
	case "detector":
		return Signature{Inputs: []model.Tensor{{Name: "image", Datatype: model.Uint8, Shape: picture}},
			Outputs: []model.Tensor{{Name: "scores", Datatype: model.FP32, Shape: []int64{144, 7}}, {Name: "boxes", Datatype: model.FP32, Shape: []int64{144, 4}}},
			SLO:     100 * time.Millisecond, Least: 10 * time.Millisecond}, nil
	case "vehicle":
		return Signature{Inputs: []model.Tensor{{Name: "image", Datatype: model.Uint8, Shape: cutout}},
			Outputs: []model.Tensor{{Name: "scores", Datatype: model.FP32, Shape: []int64{6}}}, SLO: 50 * time.Millisecond, Least: 5 * time.Millisecond}, nil
	}
	return Signature{}, fmt.Errorf("no model %q; there are detector, vehicle", name)
}

// traffic is detector → crop → vehicle for each crop.
func traffic() Application {
	list := func(name string, dims []int64, most int) Tensor {
		return Tensor{Tensor: model.Tensor{Name: name, Datatype: model.Uint8, Shape: dims}, Most: most, Mean: float64(most) / 4}
	}
	return Application{Name: "traffic", Latency: 200 * time.Millisecond,
		Inputs:  []Tensor{{Tensor: model.Tensor{Name: "image", Datatype: model.Uint8, Shape: picture}}},
		Outputs: []Output{{Name: "boxes", Of: "boxes"}, {Name: "vehicles", Of: "kinds"}},
		Stages: []Stage{
			{Name: "vehicle", Model: "vehicle", Each: "vehicles", Takes: []Flow{{"image", "vehicles"}}, Gives: []Flow{{"scores", "kinds"}}},
			{Name: "crop", Hook: "crop", Takes: []Flow{{"boxes", "boxes"}, {"image", "image"}}, Gives: []Flow{{"vehicles", "vehicles"}},
				Declares: []Tensor{list("vehicles", cutout, 16)}, Fixed: time.Millisecond},
			{Name: "detect", Model: "detector", Takes: []Flow{{"image", "image"}}, Gives: []Flow{{"boxes", "boxes"}}},
		}}
}

func TestStagesArePutInOrder(t *testing.T) {
	g, err := Resolve(traffic(), street)
	if err != nil {
		t.Fatal(err)
	}

	var order []string
	for _, s := range g.Steps {
		order = append(order, s.Name)
	}
	if got := strings.Join(order, " "); got != "detect crop vehicle" {
		t.Errorf("steps %s, want detect crop vehicle", got)
	}
	vehicle := &g.Steps[2]
	if vehicle.List != vehicle.In[0] || g.Elements(vehicle.Out[0]) != 16 || g.FanOut(2) != 4 || len(vehicle.After) != 1 || vehicle.After[0] != 1 {
		t.Errorf("vehicle: %+v, want that it runs for each of 16 crops after step 1", vehicle)
	}
	if detect := &g.Steps[0]; detect.Out[0] != Single || detect.List != Single {
		t.Errorf("detect gives %v, want that nobody names its scores", detect.Out)
	}
}

func TestWhatDoesNotFitIsNamed(t *testing.T) {
	for want, change := range map[string]func(a *Application){
		`stage "vehicle": input "image": tensor "vehicles" is UINT8 [32 47 3]: want UINT8 [32 48 3]`: func(a *Application) { a.Stages[1].Declares[0].Shape = []int64{32, 47, 3} },
		`stage "detect": input "image": tensor "image" is FP32`:                                      func(a *Application) { a.Inputs[0].Datatype = model.FP32 },
		`stage "detect": model: no model "detektor"; there are detector, vehicle`:                    func(a *Application) { a.Stages[2].Model = "detektor" },
		`stages: "a cycle: crop → detect → crop": want none`: func(a *Application) {
			a.Stages[2].Takes[0].Tensor = "vehicles"
		},
		`stages: "a cycle: vehicle → vehicle": want none: no stage may need its own results`: func(a *Application) {
			a.Stages[0].Takes = append(a.Stages[0].Takes, Flow{"image", "kinds"})
		},
		`stage "crop": input: "bocks": want a tensor that the frame or a stage gives`: func(a *Application) { a.Stages[1].Takes[0].Tensor = "bocks" },
		`stage "crop": output "vehicles": most: 10000: want 1 to 1024 elements`:       func(a *Application) { a.Stages[1].Declares[0].Most = 10000 },
		`stage "crop": output "vehicles": most: -1: want`:                             func(a *Application) { a.Stages[1].Declares[0].Most = -1 },
		`stage "crop": output "vehicles": mean: 17: want 0 to 16`:                     func(a *Application) { a.Stages[1].Declares[0].Mean = 17 },
		`stage "crop": output "vehicles": mean: -1: want 0 to 16`:                     func(a *Application) { a.Stages[1].Declares[0].Mean = -1 },
		`stage "crop": output "vehicles": mean: NaN: want 0 to 16`:                    func(a *Application) { a.Stages[1].Declares[0].Mean = math.NaN() },
		`stage "vehicle": each: "boxes": want a list`:                                 func(a *Application) { a.Stages[0].Each = "boxes" },
		`stage "vehicle": input: "vehicles": want a single tensor, or the list`:       func(a *Application) { a.Stages[0].Each = "" },
		`stage "vehicle": inputs: "": want also "image"`:                              func(a *Application) { a.Stages[0].Takes[0].Port = "" },
		`latency: 15ms: want at least 16ms, which single requests take: detect 10ms, crop 1ms, vehicle 5ms`: func(a *Application) {
			a.Latency = 15 * time.Millisecond
		},
		`latency: -1ns: want more than 0`:                                          func(a *Application) { a.Latency = -1 },
		`output "boxes": of: "x": want a tensor`:                                   func(a *Application) { a.Outputs[0].Of = "x" },
		`output: "boxes": want 1 to 128 letters`:                                   func(a *Application) { a.Outputs[1].Name = "boxes" },
		`stage 1: name: "vehicle": want a name that no other`:                      func(a *Application) { a.Stages[1].Name = "vehicle" },
		`stage "crop": model and hook: [detector crop]: want exactly one`:          func(a *Application) { a.Stages[1].Model = "detector" },
		`stage "vehicle": output: "score": want each of model "vehicle"'s outputs`: func(a *Application) { a.Stages[0].Gives[0].Port = "score" },
		`tensor: "boxes": want to be given once`:                                   func(a *Application) { a.Stages[0].Gives[0].Tensor = "boxes" },
		`stages: 0: want 1 to 64`:                                                  func(a *Application) { a.Stages = nil },
		`stage "vehicle": input: "vehicles": want what no optional stage gives`:    func(a *Application) { a.Stages[1].Optional = true },
		`stage "crop": outputs: "0 of 1 declared": want a datatype`:                func(a *Application) { a.Stages[1].Declares = nil },
		`stage "crop": output "vehicles": datatype "UINT9"`:                        func(a *Application) { a.Stages[1].Declares[0].Datatype = "UINT9" },
		`input "other": shape: [-1]: want a stage that says how large`: func(a *Application) {
			a.Inputs = append(a.Inputs, Tensor{Tensor: model.Tensor{Name: "other", Datatype: model.Uint8, Shape: []int64{-1}}})
		},
	} {
		a := traffic()
		change(&a)
		if g, err := Resolve(a, street); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, error %v, want one that says\n%s", g != nil, err, want)
		}
	}
}

// TestOptionalStages shows that a stage that needs an optional stage must also be optional.
func TestOptionalStages(t *testing.T) {
	a := traffic()
	a.Stages[0].Optional = true
	g, err := Resolve(a, street)
	if err != nil {
		t.Fatal(err)
	}
	if !g.Maybe[g.Answer[1]] || g.Maybe[g.Answer[0]] {
		t.Errorf("answers that may be missing: %v, want the second", g.Maybe)
	}
}

// TestVariableDimensionsAreLearned shows that an ensemble may leave a dimension to its models.
func TestVariableDimensionsAreLearned(t *testing.T) {
	a := traffic()
	a.Inputs[0].Shape = []int64{-1, 96, 3}
	g, err := Resolve(a, street)
	if err != nil || g.Inputs[0].Shape[0] != 96 || a.Inputs[0].Shape[0] != -1 {
		t.Errorf("%v, %v; want 96, and that the caller's is left alone", g, err)
	}
}

func TestSplitAndOffsets(t *testing.T) {
	g, err := Resolve(traffic(), street)
	if err != nil {
		t.Fatal(err)
	}
	p, err := profile.Linear(time.Millisecond, 5*time.Millisecond, 16)
	if err != nil {
		t.Fatal(err)
	}
	profiles := func(int) *profile.Profile { return p }

	b, err := g.Split(profiles, 60, 100*time.Microsecond)
	if err != nil {
		t.Fatal(err)
	}
	if b.Batch[0] < 2 || b.Batch[1] != 0 || b.Batch[2] < 2 || b.Offset[0] <= b.Offset[1] || b.Cost[0] <= 0 {
		t.Errorf("%+v, want batches of both models, none of the hook", b)
	}
	g.Latency = 12 * time.Millisecond
	var infeasible *plan.InfeasibleError
	if _, err := g.Split(profiles, 60, 0); !errors.As(err, &infeasible) {
		t.Errorf("error %v, want that the latency is too short", err)
	}

	// Without profiles the SLOs decide: 100 ms before, 1 ms and 50 ms after.
	offsets := g.Offsets(151 * time.Millisecond)
	if offsets[2] != 0 || offsets[1] != 50*time.Millisecond || offsets[0] != 51*time.Millisecond {
		t.Errorf("offsets %v, want 51 ms, 50 ms, 0", offsets)
	}
}

func TestDrawIsCompleteAndEscaped(t *testing.T) {
	a := traffic()
	g, err := Resolve(a, street)
	if err != nil {
		t.Fatal(err)
	}
	p, err := profile.Linear(time.Millisecond, 5*time.Millisecond, 16)
	if err != nil {
		t.Fatal(err)
	}
	b, err := g.Split(func(int) *profile.Profile { return p }, 60, 0)
	if err != nil {
		t.Fatal(err)
	}

	g.Steps[1].Hook = "<script>"
	var svg strings.Builder
	if err := g.Draw(&svg, b, 60); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"traffic: 200ms", ">detect<", ">vehicle<", "each of vehicles: 4, at most 16", "batch ", " GPUs", "&lt;script&gt;"} {
		if !strings.Contains(svg.String(), want) {
			t.Errorf("no %q in the drawing:\n%s", want, svg.String())
		}
	}
}

// FuzzResolve draws applications from bytes. Resolve ends with an ordered graph or with an error.
func FuzzResolve(f *testing.F) {
	f.Add([]byte{3, 0, 1, 2, 1, 0, 2, 3, 4, 5})
	f.Add([]byte{9, 1, 1, 1, 1, 1, 1, 1, 1, 7, 7, 3, 9, 250})
	f.Fuzz(func(t *testing.T, data []byte) {
		next := func(n int) int {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return int(b) % n
		}
		name := func() string { return string(rune('a' + next(12))) }
		dims := func() []int64 { return [][]int64{picture, cutout, {-1, 96, 3}, {6}}[next(4)] }

		a := Application{Name: "x", Latency: time.Duration(next(60)) * time.Millisecond}
		a.Inputs = []Tensor{{Tensor: model.Tensor{Name: name(), Datatype: model.Uint8, Shape: dims()}}}
		for range next(8) {
			s := Stage{Name: name(), Optional: next(3) == 0}
			for range next(3) {
				s.Takes = append(s.Takes, Flow{[]string{"image", "scores"}[next(2)], name()})
			}
			for range next(3) {
				s.Gives = append(s.Gives, Flow{[]string{"boxes", "scores"}[next(2)], name()})
			}
			if next(2) == 0 {
				s.Model = []string{"detector", "vehicle", "none"}[next(3)]
				if next(2) == 0 {
					s.Each = name()
				}
			} else {
				s.Hook = "h"
				for range s.Gives {
					s.Declares = append(s.Declares, Tensor{Tensor: model.Tensor{Datatype: model.Uint8, Shape: dims()}, Most: next(40) - 1})
				}
			}
			a.Stages = append(a.Stages, s)
		}
		a.Outputs = []Output{{Name: "out", Of: name()}}

		g, err := Resolve(a, street)
		if err != nil {
			return
		}
		if len(g.Steps) != len(a.Stages) {
			t.Fatalf("%d steps of %d stages", len(g.Steps), len(a.Stages))
		}
		for j, s := range g.Steps {
			for _, before := range s.After {
				if int(before) >= j {
					t.Fatalf("step %d comes before %d, which it needs", j, before)
				}
			}
		}
		g.Offsets(time.Second)
	})
}
