package plan

import (
	"fmt"
	"slices"
)

// Models may share parameters: an early exit and the model that it is an exit of (AdaInf §2.2). Such models name the
// same trunk, and the number of their bytes that belong to it. Exits are nested, each a beginning of the same layers,
// so on a GPU the longest beginning contains all others.

// weight sums the bytes of models on one GPU, with those of each trunk once.
type weight struct {
	static int64
	trunks []beginning // the longest of each trunk
}

// beginning is the bytes of a trunk's first layers.
type beginning struct {
	trunk int32
	bytes int64
}

// addModel adds a model with shared bytes in a trunk; trunk 0 is none.
func (w *weight) addModel(static, shared int64, trunk int32) {
	if trunk == 0 {
		w.static += static
		return
	}

	k := slices.IndexFunc(w.trunks, func(b beginning) bool { return b.trunk == trunk })
	if k < 0 {
		w.static += static
		w.trunks = append(w.trunks, beginning{trunk, shared})
		return
	}
	longest := max(w.trunks[k].bytes, shared)
	w.static += static - shared + longest - w.trunks[k].bytes
	w.trunks[k].bytes = longest
}

// checkShared reports what is wrong with a model's part of a trunk.
func checkShared(what string, static, shared int64, trunk int32) error {
	if shared < 0 || shared > static || trunk < 0 || trunk == 0 && shared != 0 {
		return refuse(what+": shared bytes and trunk", [2]int64{shared, int64(trunk)}, fmt.Sprintf("0 to %d, the static ones, and a trunk above 0, or none of both", static))
	}
	return nil
}

// trunkOf returns a model's part of a trunk.
func (f *Fleet) trunkOf(m int) (shared int64, trunk int32) {
	if f.Trunk == nil {
		return 0, 0
	}
	return f.Shared[m], f.Trunk[m]
}
