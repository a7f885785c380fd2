package sessions

import (
	"math"
	"time"
)

// placement is the place of a session, or of one of its two parts: a quality, and a worker for each module.
type placement struct {
	stream  int
	part    part
	quality int
	worker  []int
	demoted int // when, in order of events; 0: never
	since   []segment
}

// part is the frames of a session that belong to a placement: an interval of shares, so that the parts are spread
// evenly.
type part struct{ from, to float64 }

var allFrames = part{0, 1}

// share returns the share of a session's frames.
func (f part) share() float64 { return f.to - f.from }

// hasFrame reports whether the n-th frame of a session belongs to the part. By the golden ratio, every stretch of
// frames is divided in the same proportion.
func (f part) hasFrame(n int) bool {
	_, at := math.Modf(float64(n) * (math.Phi - 1))
	return f.from <= at && at < f.to
}

// segment is a placement's state from a time on.
type segment struct {
	from    time.Duration
	quality int
	worker  []int
}
