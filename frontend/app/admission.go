package app

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	graph "downbeat.dev/core/app"
)

// ErrRefused marks sessions that cannot be promised what they ask for; the error is a *RefusedError.
var ErrRefused = errors.New("session refused")

// RefusedError says why a session may not open, and what would be admitted now.
type RefusedError struct {
	Application string
	Rate        float64       // that was asked for, frames/s
	Latency     time.Duration // that was asked for
	OfferRate   float64       // at that latency; 0: none
	// OfferLatency is the shortest that was found at that rate; 0: none.
	OfferLatency time.Duration
	Why          error // what lacks
}

func (e *RefusedError) Error() string {
	// What would fit lets a caller ask again with something that may be promised.
	offer := "nothing fits now"
	switch {
	case e.OfferRate > 0 && e.OfferLatency > 0:
		offer = fmt.Sprintf("%.3g frames/s fit, or a latency of %v", e.OfferRate, e.OfferLatency.Round(time.Millisecond))
	case e.OfferRate > 0:
		offer = fmt.Sprintf("%.3g frames/s fit", e.OfferRate)
	case e.OfferLatency > 0:
		offer = fmt.Sprintf("a latency of %v fits", e.OfferLatency.Round(time.Millisecond))
	}
	return fmt.Sprintf("%v: application %q: %.6g frames/s within %v: %v: %s", ErrRefused, e.Application, e.Rate, e.Latency, e.Why, offer)
}

func (e *RefusedError) Unwrap() []error { return []error{ErrRefused, e.Why} }

// Admission decides which sessions may open, of all Apps that share it (core/app.Admit). It may be used by any number of
// goroutines; sessions that ask at the same time are decided one after another.
type Admission struct {
	capacity func() graph.Capacity
	trial    graph.Trial
	begun    time.Time // phases are times since then

	mu       sync.Mutex // guards what follows
	streams  []*Stream
	promises []graph.Promise // by stream
}

// NewAdmission makes an Admission. capacity tells what there is to keep promises with, at any time; trial runs them in virtual
// time (core/sim.Trial), nil: demand alone decides.
func NewAdmission(capacity func() Capacity, trial Trial) *Admission {
	return &Admission{capacity: capacity, trial: trial, begun: time.Now()}
}

// admitStream decides about a session, and sets its offsets and phase where it may open.
func (a *Admission) admitStream(s *Stream) error {
	a.mu.Lock()
	defer a.mu.Unlock()

	// The phase comes before the decision, which tries the session beside the others in time.
	p := graph.Promise{Graph: s.app.graph, Profiles: s.app.profiles, Rate: s.session.Rate, Latency: s.session.Latency}
	p.Phase = graph.ChoosePhase(a.promises, &p, s.session.Triggered)

	p, decision, err := graph.Admit(a.capacity(), a.promises, p, a.trial)
	if err != nil {
		return fmt.Errorf("%w: session: %w", ErrInvalid, err)
	}
	if !decision.Admitted {
		return &RefusedError{Application: s.app.graph.Name, Rate: s.session.Rate, Latency: s.session.Latency,
			OfferRate: decision.OfferRate, OfferLatency: decision.OfferLatency, Why: decision.Refusal}
	}

	s.offsets, s.phase = p.Offsets, a.begun.Add(p.Phase)
	a.streams, a.promises = append(a.streams, s), append(a.promises, p)
	return nil
}

// release forgets a session.
func (a *Admission) release(s *Stream) {
	a.mu.Lock()
	defer a.mu.Unlock()

	// Both lists have the same index.
	if i := slices.Index(a.streams, s); i >= 0 {
		a.streams, a.promises = slices.Delete(a.streams, i, i+1), slices.Delete(a.promises, i, i+1)
	}
}

// notePhase remembers when a session's frames come: nobody knew before its first.
func (a *Admission) notePhase(s *Stream, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.Index(a.streams, s); i >= 0 {
		// A promise is periodic: only the place within its period matters.
		p := &a.promises[i]
		p.Phase = at.Sub(a.begun) % p.Period()
	}
}
