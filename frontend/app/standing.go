package app

import "time"

// Standing is how far a session's promise is kept.
type Standing struct {
	Frames  uint64 `json:"frames"`  // run and ended
	InTime  uint64 `json:"in_time"` // answered within the latency
	Late    uint64 `json:"late"`    // answered after it
	Failed  uint64 `json:"failed"`  // without an answer
	Skipped uint64 `json:"skipped"` // refused: faster than the session's rate
	// Recent is the share of the latest frames that were in time, 0 to 1.
	Recent float64 `json:"recent"`
	// Hurt means that Recent is below the promise.
	Hurt bool `json:"hurt"`
	// Slowed is the reduced rate after a loss of GPUs, frames/s; 0: the session has its own rate.
	Slowed float64 `json:"slowed,omitempty"`
	// Evicted is the reason why the session was evicted; empty: it was not.
	Evicted string `json:"evicted,omitempty"`
}

const (
	// promisedShare is the share of frames that must be in time.
	promisedShare = 0.99
	// recentFrames is the number of latest frames that decide whether a promise is kept.
	recentFrames = 200
	// hurtLeast is the number of bad frames from which a promise can be broken: every promise allows one.
	hurtLeast = 2
)

// window records which of the latest frames were bad.
type window struct {
	bad   [recentFrames]bool
	n     int // frames in it
	next  int
	count int // bad frames in it
}

func (w *window) addFrame(bad bool) {
	// The oldest frame leaves a full window; subtract it.
	if w.n == recentFrames && w.bad[w.next] {
		w.count--
	}
	if bad {
		w.count++
	}
	w.bad[w.next] = bad
	w.next = (w.next + 1) % recentFrames
	w.n = min(w.n+1, recentFrames)
}

func (w *window) goodShare() float64 { return 1 - float64(w.count)/float64(max(w.n, 1)) }

// noteFrame counts a frame's end, and signals when the promise is broken or kept again.
func (s *Stream) noteFrame(answered, inTime bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.standing
	st.Frames++
	switch {
	case inTime:
		st.InTime++
	case answered:
		st.Late++
	default:
		st.Failed++
	}

	s.recent.addFrame(!inTime)
	st.Recent = s.recent.goodShare()

	// With the share alone, a young session would be broken after its first bad frame.
	hurt := s.recent.count >= hurtLeast && st.Recent < promisedShare
	if hurt == st.Hurt {
		return
	}
	st.Hurt = hurt
	if hurt {
		s.app.stats.hurt.Add(1)
	}
	s.tellChange()
}

// tellChange sends to Changed. The caller holds the lock.
func (s *Stream) tellChange() {
	select {
	case s.changed <- struct{}{}:
	default: // an unread message already stands for this change
	}
}

// Standing returns how far the promise is kept.
func (s *Stream) Standing() Standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.standing
}

// Changed receives a message when Standing's Hurt, Slowed or Evicted changes; one message may stand for several
// changes. It is never closed.
func (s *Stream) Changed() <-chan struct{} { return s.changed }

// NextFrame returns the next time at which a frame of a Triggered session should come, and now for other sessions.
func (s *Stream) NextFrame(now time.Time) time.Time {
	if !s.session.Triggered || s.phase.IsZero() {
		return now
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	return nextOf(s.phase, s.period(), now)
}

// nextOf returns the first time, now or later, that is a whole number of periods after phase; phase itself if it is
// in the future.
func nextOf(phase time.Time, period time.Duration, now time.Time) time.Time {
	if late := now.Sub(phase); late > 0 {
		return phase.Add((late + period - 1) / period * period)
	}
	return phase
}
