package memcost

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
)

// Resident returns the bytes that the process has in memory besides those of Go's runtime: what C libraries and
// mappings hold. Go's own are left out, since it gives back what is garbage when it pleases.
func Resident(t testing.TB) int64 {
	t.Helper()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)

	text, err := os.ReadFile("/proc/self/statm")
	var size, pages int64
	if _, scan := fmt.Sscan(string(text), &size, &pages); err != nil || scan != nil {
		t.Fatal(err, scan)
	}
	return pages*int64(os.Getpagesize()) - int64(m.HeapSys-m.HeapReleased)
}

// loadRounds is how many times CheckReturned loads, after a first time.
const loadRounds = 5

// CheckReturned fails t unless load takes at least so many bytes of Resident, and unload gives back all but a quarter
// of what load took. The first of several rounds does not count, for libraries keep some memory for good; of the
// others the median does, since allocators give back in steps of their own.
func CheckReturned(t testing.TB, least int64, load, unload func()) {
	t.Helper()
	var took, kept []int64
	for round := range 1 + loadRounds {
		before := Resident(t)
		load()
		during := Resident(t)
		unload()
		after := Resident(t)

		t.Logf("%d MiB before, %d loaded, %d unloaded", before>>20, during>>20, after>>20)
		if round > 0 {
			took, kept = append(took, during-before), append(kept, after-before)
		}
	}

	slices.Sort(took)
	slices.Sort(kept)
	if n := took[loadRounds/2]; n < least {
		t.Errorf("a load took %d MiB, want at least %d", n>>20, least>>20)
	}
	if n := kept[loadRounds/2]; n > took[loadRounds/2]/4 {
		t.Errorf("%d MiB of %d are still held", n>>20, took[loadRounds/2]>>20)
	}
}
