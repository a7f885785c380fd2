package learn

import (
	"math"
	"slices"
)

// evidence compares the answers of a candidate and the serving weights to the same samples. Only samples that they
// answer differently show which one is right more often (McNemar 1947). How probable each makes the right class shows
// sooner which one learns: it says how near a wrong answer was to the right one.
type evidence struct {
	judged      float64    // samples
	plus, minus float64    // right only for the candidate, and only for the serving weights
	surer       float64    // sum of the differences: how much more probable the right class is to the candidate
	surerSquare float64    // sum of their squares
	exits       []evidence // of each early exit of the candidate, compared with the whole candidate
}

// add counts answers to the same samples.
func (e *evidence) add(serving, candidate []bool) {
	e.judged += float64(len(serving))
	for i := range serving {
		switch {
		case candidate[i] && !serving[i]:
			e.plus++
		case serving[i] && !candidate[i]:
			e.minus++
		}
	}
}

// addSure adds by how much the right class of a sample is more probable to the candidate.
func (e *evidence) addSure(more float64) {
	e.surer += more
	e.surerSquare += more * more
}

// addExits counts the answers of a net's exits, compared with the whole net.
func (e *evidence) addExits(now sight) {
	e.exits = slices.Grow(e.exits, len(now.exits))[:len(now.exits)]
	for k, right := range now.exits {
		e.exits[k].add(now.right, right)
	}
}

// follow adds newer answers and reduces the weight of older ones.
func (e *evidence) follow(now evidence) {
	e.judged, e.plus, e.minus = evidenceKept*e.judged+now.judged, evidenceKept*e.plus+now.plus, evidenceKept*e.minus+now.minus
	e.surer, e.surerSquare = evidenceKept*e.surer+now.surer, evidenceKept*e.surerSquare+now.surerSquare

	// Clone: other evidence may share the slice of exits. The exits may have no newer answers.
	older := e.exits
	if now.exits == nil {
		return
	}
	e.exits = slices.Clone(now.exits)
	for k := range older {
		e.exits[k] = older[k]
		e.exits[k].follow(now.exits[k])
	}
}

// exitGaps returns, for each exit, the share of right answers of the whole net minus that of the exit.
func (e *evidence) exitGaps() (gaps []float64) {
	for k := range e.exits {
		gaps = append(gaps, -e.exits[k].gain())
	}
	return gaps
}

// reversed returns the evidence for the serving weights against the candidate, without the exits.
func (e *evidence) reversed() evidence {
	return evidence{judged: e.judged, plus: e.minus, minus: e.plus, surer: -e.surer, surerSquare: e.surerSquare}
}

// gain returns the candidate's share of right answers minus that of the serving weights.
func (e *evidence) gain() float64 { return (e.plus - e.minus) / max(1, e.judged) }

// standardError returns the standard error of the gain between two equally good versions.
func (e *evidence) standardError() float64 {
	return math.Sqrt(max(1, e.plus+e.minus)) / max(1, e.judged)
}

// errors returns the gain in standard errors.
func (e *evidence) errors() float64 { return e.gain() / e.standardError() }

// sureErrors returns, in standard errors between two equally sure versions, by how much the right class is more probable
// to the candidate.
func (e *evidence) sureErrors() float64 {
	if e.surerSquare == 0 {
		return 0
	}
	return e.surer / math.Sqrt(e.surerSquare)
}
