package sessions

import (
	"fmt"

	"downbeat.dev/core/app"
	"downbeat.dev/core/model"
	"downbeat.dev/core/profile"
)

// graphOf describes an application for core/app: each module is a hook for its processor time, and its model. A
// fan-out is a list of the hook.
func graphOf(a *Application, quality int) (*app.Graph, app.Profiles, error) {
	g := &app.Graph{Application: &app.Application{Name: a.Name, Latency: a.Latency}}
	var byStep []*profile.Profile
	for i := range a.Modules {
		m := &a.Modules[i]
		var after []int32
		for _, before := range m.After {
			after = append(after, 2*before+1)
		}

		// A model's step runs once per element of a list; the list stands for the results of the processor's step.
		list := len(g.Tensors)
		g.Lists = append(g.Lists, list)
		g.Tensors = append(g.Tensors, app.Tensor{Tensor: model.Tensor{Name: m.Name}, Most: m.FanOut, Mean: float64(m.FanOut)})
		name := fmt.Sprintf("%s/%s/%s", a.Name, m.Name, a.Qualities[quality].Name)
		g.Steps = append(g.Steps,
			app.Step{Stage: &app.Stage{Name: m.Name + "-cpu", Hook: "cpu", Fixed: m.CPU}, List: app.Single, After: after},
			app.Step{Stage: &app.Stage{Name: m.Name, Model: name}, List: list, After: []int32{int32(2 * i)}})

		of, err := profileOf(a, i, quality)
		if err != nil {
			return nil, nil, err
		}
		byStep = append(byStep, nil, of)
	}
	return g, func(step int) *profile.Profile { return byStep[step] }, nil
}
