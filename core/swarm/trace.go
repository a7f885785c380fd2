package swarm

import (
	"fmt"
	"strings"
)

// mark is one line of a trace.
type mark struct {
	at      Time
	what    string
	a, b, c int64
}

const traceKeep = 50

// trace keeps the latest marks and a hash over all marks.
type trace struct {
	last [traceKeep]mark
	n    int
	hash uint64
}

const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

func (t *trace) note(at Time, what string, a, b, c int64) {
	t.last[t.n%traceKeep] = mark{at, what, a, b, c}
	t.n++

	// FNV with an additional shift. Two runs of a seed have different hashes if any event differs.
	h := t.hash ^ fnvOffset
	for i := 0; i < len(what); i++ {
		h = (h ^ uint64(what[i])) * fnvPrime
	}

	for _, x := range [...]int64{int64(at), a, b, c} {
		h = (h ^ uint64(x)) * fnvPrime
		h ^= h >> 29
	}
	t.hash = h
}

// String lists the latest marks.
func (t *trace) String() string {
	var s strings.Builder
	for i := max(0, t.n-traceKeep); i < t.n; i++ {
		m := &t.last[i%traceKeep]
		fmt.Fprintf(&s, "%12.6f ms  %s %d %d %d\n", float64(m.at)/1e6, m.what, m.a, m.b, m.c)
	}
	return s.String()
}
