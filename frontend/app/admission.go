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
	gpus     int             // for which the promises were found to be kept
	missed   time.Time       // since when there are fewer; zero: there are not
	slowed   bool            // some come with less than their rate
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
	p := graph.Promise{Graph: s.app.graph, Profiles: s.app.profilesAt(s.session.Floor), Rate: s.session.Rate, Latency: s.session.Latency,
		Least: s.session.LeastRate, Claim: s.session.Claim}
	if p.Profiles == nil {
		return fmt.Errorf("%w: session: floor %v: no variant of some stage's family reaches it", ErrInvalid, s.session.Floor)
	}
	p.PhaseOf = func(p *graph.Promise) time.Duration { return graph.ChoosePhase(a.promises, p, s.session.Triggered) }
	p.Phase = p.PhaseOf(&p)

	c := a.capacity()
	p, decision, err := graph.Admit(c, a.promises, p, a.trial)
	if err != nil {
		return fmt.Errorf("%w: session: %w", ErrInvalid, err)
	}
	if !decision.Admitted {
		return &RefusedError{Application: s.app.graph.Name, Rate: s.session.Rate, Latency: s.session.Latency,
			OfferRate: decision.OfferRate, OfferLatency: decision.OfferLatency, Why: decision.Refusal}
	}

	// Nothing was missed before there were sessions.
	if len(a.streams) == 0 {
		a.gpus, a.missed = c.GPUs, time.Time{}
	}
	p.PhaseOf = nil // it is decided
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

// evictAfter is how long GPUs are missed before sessions give way: a backend that starts again is back by then.
const evictAfter = 2 * time.Second

// Review compares the promises with the GPUs that are there, and is called a few times a second. When GPUs have been missed for 2 s
// and a session is hurt, as many sessions give way as the trial asks for (core/app.Readmit): those that may come with fewer
// frames, then by claim those that are evicted. When GPUs return, slowed sessions have their own rates again. It returns the
// sessions that were evicted.
func (a *Admission) Review(now time.Time) (evicted []*Stream) {
	a.mu.Lock()
	had, c := a.gpus, a.capacity()

	// Without any GPU nobody's leaving would help the others.
	if len(a.streams) == 0 || c.GPUs == 0 || !a.mustReadmit(now, c.GPUs) {
		a.mu.Unlock()
		return nil
	}

	c.Spare = 0
	remains := graph.Readmit(c, a.promises, a.trial)
	a.gpus, a.missed, a.slowed = c.GPUs, time.Time{}, false
	for i, r := range remains {
		if s := a.streams[i]; r.Rate == 0 {
			evicted = append(evicted, s)
		} else {
			a.slowed = a.slowed || r.Rate < s.session.Rate
			s.changeRate(r.Rate, now, a.begun.Add(r.Phase))
		}
	}
	a.mu.Unlock()

	// Each stream forgets its promise as it closes.
	for _, s := range evicted {
		s.evict(&EvictedError{Application: s.app.graph.Name, Had: had, Left: c.GPUs})
	}
	return evicted
}

// mustReadmit tells whether the promises have to be looked at again for as many GPUs as there are.
func (a *Admission) mustReadmit(now time.Time, gpus int) bool {
	if gpus >= a.gpus {
		more := gpus > a.gpus
		a.gpus, a.missed = gpus, time.Time{}
		return more && a.slowed
	}
	if a.missed.IsZero() {
		a.missed = now
	}

	// Somebody must be hurt by what is missing: the trial is careful, and what is measured goes before.
	return now.Sub(a.missed) >= evictAfter && slices.ContainsFunc(a.streams, func(s *Stream) bool { return s.Standing().Hurt })
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
