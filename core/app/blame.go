package app

import (
	"fmt"
	"slices"
	"strings"

	"downbeat.dev/core/model"
)

// explainUnplaced explains why stages could not be placed: a tensor is missing, or the stages form a cycle.
func (r *resolving) explainUnplaced(waiting []*Stage) error {
	giver := map[string]*Stage{}
	for _, s := range waiting {
		for _, f := range s.Gives {
			giver[f.Tensor] = s
		}
	}

	// Report a missing tensor before a cycle: it is the simpler mistake and may cause the cycle.
	for _, s := range waiting {
		for _, f := range s.Takes {
			if _, ok := r.source[f.Tensor]; !ok && giver[f.Tensor] == nil {
				return s.refuseField(r.g.Application, "input", f.Tensor, "a tensor that the frame or a stage gives")
			}
		}
	}

	// Walk from a stage back to its producers until a stage repeats, which closes the cycle.
	var way []string
	// Each of these stages waits for another one that waits, so the walk must reach a stage twice.
	for s := waiting[0]; ; {
		if at := slices.Index(way, s.Name); at >= 0 {
			way = append(way[at:], s.Name)
			slices.Reverse(way)
			return r.g.refuseField("stages", "a cycle: "+strings.Join(way, " → "), "none: no stage may need its own results")
		}

		way = append(way, s.Name)
		for _, f := range s.Takes {
			if _, ok := r.source[f.Tensor]; !ok {
				s = giver[f.Tensor]
				break
			}
		}
	}
}

func portNames(flows []Flow) string {
	var names []string
	for _, f := range flows {
		names = append(names, f.Port)
	}
	return strings.Join(names, ", ")
}

func listTensors(all []model.Tensor) string {
	var names []string
	for _, t := range all {
		names = append(names, fmt.Sprintf("%q", t.Name))
	}
	return strings.Join(names, ", ")
}
