package plan

// step is the latest rise of all services' demand together beyond chance. When it begins, nothing tells a burst, after which
// demand is as before, from a lasting step (decision 0412).
type step struct {
	before  float64 // demand before it, in requests/s; 0: there was none lately
	seconds float64 // since it began
}

const (
	// stepSpan is the time, in seconds, within which demand may be found to be as before.
	stepSpan = 1
	// burstMost is the longest time, in seconds, for which a rise is taken for a burst.
	burstMost = 0.3
)

// note records a change of demand beyond chance. Several rises, one soon after the other, are one step.
func (s *step) note(before, after float64) {
	if after < before {
		*s = step{}
	} else if s.before == 0 {
		*s = step{before: max(1, before)}
	}
}

// pass records that time has passed without a further change.
func (s *step) pass(seconds float64) {
	if s.seconds += seconds; s.seconds > stepSpan {
		*s = step{}
	}
}

// lasts reports whether the step is too long for a burst.
func (s *step) lasts() bool { return s.before > 0 && s.seconds > burstMost }
