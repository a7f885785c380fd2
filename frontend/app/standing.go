package app

import "time"

// Standing is how a session's promise is kept.
type Standing struct {
	Frames  uint64 `json:"frames"`  // that were run and have ended
	InTime  uint64 `json:"in_time"` // answered within the latency
	Late    uint64 `json:"late"`    // answered after it
	Failed  uint64 `json:"failed"`  // without an answer
	Skipped uint64 `json:"skipped"` // refused: faster than the session's rate
	// Recent is the share of the latest frames that were in time, 0 to 1.
	Recent float64 `json:"recent"`
	// Hurt says that Recent is less than was promised.
	Hurt bool `json:"hurt"`
	// Slowed is the rate that has to do, frames/s, since GPUs were lost; 0: the session has its own.
	Slowed float64 `json:"slowed,omitempty"`
	// Evicted says why the session was closed; empty: it was not evicted.
	Evicted string `json:"evicted,omitempty"`
}

const (
	// promisedShare of the frames are in time.
	promisedShare = 0.99
	// recentFrames is how many of the latest frames tell whether a promise is kept.
	recentFrames = 200
	// hurtLeast is how many frames have to be bad before anybody is told: one is within every promise.
	hurtLeast = 2
)

// window remembers which of the latest frames were bad.
type window struct {
	bad   [recentFrames]bool
	n     int // frames in it
	next  int
	count int // bad ones in it
}

func (w *window) addFrame(bad bool) {
	// The oldest frame leaves a full window, and with it what it counted.
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

// noteFrame counts a frame's end, and tells of a promise that is broken or kept again.
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

	// A share alone would call a young session broken after its first bad frame.
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

// tellChange sends to Changed; the lock is held.
func (s *Stream) tellChange() {
	select {
	case s.changed <- struct{}{}:
	default: // whoever reads finds the latest anyway
	}
}

// Standing returns how the promise is kept.
func (s *Stream) Standing() Standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.standing
}

// Changed is sent to when Standing's Hurt, Slowed or Evicted has changed; one message may stand for several changes. It is never closed.
func (s *Stream) Changed() <-chan struct{} { return s.changed }

// NextFrame is the first time from now on at which a frame of a session that is Triggered should come; now for others.
func (s *Stream) NextFrame(now time.Time) time.Time {
	if !s.session.Triggered || s.phase.IsZero() {
		return now
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	return nextOf(s.phase, s.period(), now)
}

// nextOf is the first time from now on that is whole periods away from phase, or phase itself if that is to come.
func nextOf(phase time.Time, period time.Duration, now time.Time) time.Time {
	if late := now.Sub(phase); late > 0 {
		return phase.Add((late + period - 1) / period * period)
	}
	return phase
}
