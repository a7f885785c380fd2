package scaling

import (
	"context"
	"fmt"
	"strings"

	"downbeat.dev/core/sim"
)

// Named is a policy with its name in tables.
type Named struct {
	Name string
	// Scales means that the policy lowers accuracy under load and raises it again.
	Scales bool
	New    func(context.Context, *sim.World, Settings) Policy
}

// All returns every policy, ours first.
func All() []Named {
	ablation := func(change func(*proteus, *hosted)) func(context.Context, *sim.World, Settings) Policy {
		return func(ctx context.Context, w *sim.World, s Settings) Policy { return newProteus(ctx, w, s, change) }
	}
	clipper := func(most bool) func(context.Context, *sim.World, Settings) Policy {
		return func(ctx context.Context, w *sim.World, s Settings) Policy { return newClipper(ctx, w, s, most) }
	}
	sommelier := func(ctx context.Context, w *sim.World, s Settings) Policy {
		return newProteus(ctx, w, s, withoutPlacement(w))
	}
	fixed := func(rule batching) func(context.Context, *sim.World, Settings) Policy {
		return func(ctx context.Context, w *sim.World, s Settings) Policy { return newFixed(ctx, w, s, rule) }
	}

	return []Named{
		{"downbeat", true, newDownbeat},
		{"proteus", true, ablation(nil)},
		{"proteus-wo-ms", false, ablation(withoutSelection)},
		{"proteus-wo-ab", true, ablation(withoutBatching)},
		{"proteus-wo-qa", true, ablation(withoutAssignment)},
		{"sommelier", true, sommelier},
		{"infaas", true, newINFaaS},
		{"clipper-ht", false, clipper(false)},
		{"clipper-ha", false, clipper(true)},
		{"fixed-proteus", false, fixed(deferBatch)},
		{"fixed-nexus", false, fixed(earlyDropBatch)},
		{"fixed-clipper", false, fixed(aimdBatch)},
	}
}

// Select returns the policies in a comma-separated list of names; "all" is all.
func Select(list string) ([]Named, error) {
	if list == "all" {
		return All(), nil
	}

	var out []Named
	for _, name := range strings.Split(list, ",") {
		n, err := findPolicy(name)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

func findPolicy(name string) (Named, error) {
	var names []string
	for _, n := range All() {
		if n.Name == name {
			return n, nil
		}
		names = append(names, n.Name)
	}
	return Named{}, fmt.Errorf("%q: want all, or some of %s", name, strings.Join(names, ", "))
}
