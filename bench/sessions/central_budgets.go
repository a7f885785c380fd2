package sessions

import (
	"fmt"
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
)

// splitShare is the part of a latency that is divided among the stages. Budgets that use all of it leave no slack
// when two stages want a GPU at once: over four seeds of f9, shares of 1, 0.9, 0.75, 0.6 and 0.45 admitted 43, 41,
// 45, 47 and 47 sessions.
const splitShare = 0.6

// describeStages describes an application's modules as stages: processor time, then the GPU.
func describeStages(a *Application, quality int) (plan.Application, error) {
	p := plan.Application{Hop: hop}
	for i := range a.Modules {
		m := &a.Modules[i]
		of, err := profileOf(a, i, quality)
		if err != nil {
			return p, err
		}
		p.Stages = append(p.Stages, plan.Stage{Fixed: m.CPU, After: modelStages(m.After)},
			plan.Stage{Profile: of, FanOut: float64(m.FanOut), After: []int32{int32(2 * i)}})
	}
	return p, nil
}

// modelStages returns the stages of some modules' models. Each module is two stages, its processor's and its model's:
// module i's model is stage 2 i + 1.
func modelStages(modules []int32) (stages []int32) {
	for _, i := range modules {
		stages = append(stages, 2*i+1)
	}
	return stages
}

// profileOf returns a module's ℓ(b).
func profileOf(a *Application, module, quality int) (*profile.Profile, error) {
	one := float64(a.exec(module, quality))

	// The launch is the part of ℓ(1) that a larger batch does not repeat.
	return profile.Linear(time.Duration(one*(1-launchShare)), time.Duration(one*launchShare), batchMax)
}

// layout divides the latencies for streams that run at the same time, at the best qualities that fit, and returns the
// GPUs that the lightest qualities need.
func (c *central) layout(streams []Stream) (least float64, err error) {
	// levels is how many qualities may be tried: without adapt, only the best.
	apps := c.w.Apps
	rate := make([]float64, len(apps))
	levels := 1
	for _, s := range streams {
		rate[s.App] += s.FPS
		if c.adapt {
			levels = max(levels, len(apps[s.App].Qualities))
		}
	}

	// Use the best qualities whose demand fits, or the lightest.
	target := plan.DefaultTargets().At(c.w.Workers) * float64(c.w.Workers)
	for level := range levels {
		least = 0
		budgets, offsets := make([][]time.Duration, len(apps)), make([][]time.Duration, len(apps))
		for k := range apps {
			if rate[k] == 0 {
				continue
			}

			b, err := splitApplication(&apps[k], min(level, len(apps[k].Qualities)-1), rate[k])
			if err != nil {
				return 0, err
			}
			budgets[k], offsets[k] = b.Budget, b.Offset
			least += b.Total
		}

		c.budgets, c.offsets = budgets, offsets
		if least <= target {
			break
		}
	}
	return least, nil
}

// splitApplication divides an application's latency among its stages at a quality and a rate.
func splitApplication(a *Application, quality int, rate float64) (b plan.StageBudgets, err error) {
	stages, err := describeStages(a, quality)
	if err != nil {
		return b, err
	}
	b, err = plan.SplitLatency(stages, rate, time.Duration(float64(a.Latency)*splitShare))
	if err != nil {
		return b, fmt.Errorf("application %q: %w", a.Name, err)
	}

	// The undivided rest is common to all stages, in proportion.
	for j := range b.Budget {
		b.Budget[j] = time.Duration(float64(b.Budget[j]) / splitShare)
		b.Offset[j] = time.Duration(float64(b.Offset[j]) / splitShare)
	}
	return b, nil
}
