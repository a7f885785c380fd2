// Package memcost holds parsers to what an input may cost in memory: PerByte times its bytes and a constant
// (decision 0098). It is for fuzz tests of what a stranger or a peer can reach.
package memcost

import (
	"runtime"
	"testing"
)

// PerByte is how many bytes of memory one byte of input may take.
const PerByte = 64

// tries bounds how often an input that took too much is measured again.
const tries = 5

// Check fails t if parse allocates more than PerByte times the input's bytes and fixed bytes besides. All that is
// allocated counts, also what is garbage at once. parse may be called several times.
func Check(t testing.TB, input []byte, fixed int, parse func()) {
	t.Helper()
	most := uint64(PerByte*len(input) + fixed)

	// Whatever else runs in the process can only add, so the least of some tries counts.
	took := Allocated(parse)
	for try := 1; took > most && try < tries; try++ {
		took = min(took, Allocated(parse))
	}
	if took > most {
		t.Errorf("%d bytes of input take %d bytes of memory, at most %d are allowed; they begin %.80q", len(input), took, most, input)
	}
}

// Allocated returns how many bytes the process allocates during f.
func Allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
