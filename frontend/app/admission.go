package app

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	graph "downbeat.dev/core/app"
)

// ErrRefused marks sessions that cannot be promised; the error is a *RefusedError.
var ErrRefused = errors.New("session refused")

// RefusedError is the reason why a session may not open, with offers that would be admitted now.
type RefusedError struct {
	Application string
	Rate        float64       // requested, frames/s
	Latency     time.Duration // requested
	OfferRate   float64       // highest rate at that latency; 0: none
	// OfferLatency is the shortest latency found for that rate; 0: none.
	OfferLatency time.Duration
	Why          error // the missing resource
}

func (e *RefusedError) Error() string {
	// The offer lets a caller ask again for a session that may be admitted.
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

// Admission decides which sessions may open, over all Apps that share it (core/app.Admit). It is safe for concurrent
// use and decides one session at a time.
type Admission struct {
	capacity func() graph.Capacity
	trial    graph.Trial
	begun    time.Time // origin of phases

	mu       sync.Mutex // guards the fields below
	streams  []*Stream
	promises []graph.Promise // by stream
	gpus     int             // number of GPUs for which the promises were last found to be kept
	missed   time.Time       // since when there are fewer GPUs; zero: there are not
	slowed   bool            // some sessions have less than their rate
}

// NewAdmission creates an Admission. capacity returns the present capacity, and may be called at any time. trial runs
// the promises in virtual time (core/sim.Trial); nil: only demand decides.
func NewAdmission(capacity func() Capacity, trial Trial) *Admission {
	return &Admission{capacity: capacity, trial: trial, begun: time.Now()}
}

// admitStream decides about a session, and sets its offsets and phase if it may open.
func (a *Admission) admitStream(s *Stream) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.notePhases()

	// Choose the phase before the decision, which runs the session in time beside the others.
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

	// Without earlier sessions no GPUs can be missing.
	if len(a.streams) == 0 {
		a.gpus, a.missed = c.GPUs, time.Time{}
	}
	p.PhaseOf = nil // the phase is decided
	s.offsets, s.phase = p.Offsets, a.begun.Add(p.Phase)
	a.streams, a.promises = append(a.streams, s), append(a.promises, p)
	return nil
}

// release removes a session.
func (a *Admission) release(s *Stream) {
	a.mu.Lock()
	defer a.mu.Unlock()

	// Both lists have the same index.
	if i := slices.Index(a.streams, s); i >= 0 {
		a.streams, a.promises = slices.Delete(a.streams, i, i+1), slices.Delete(a.promises, i, i+1)
	}
}

// evictAfter is how long GPUs may be missing before sessions give way: a restarting backend is back by then.
const evictAfter = 2 * time.Second

// Review compares the promises with the present GPUs. Call it a few times a second. When GPUs have been missing for 2
// s and a session is hurt, it makes as many sessions give way as the trial requires (core/app.Readmit): first it
// lowers the rates of sessions that accept fewer frames, then it evicts sessions in the order of their claims. When
// GPUs return, slowed sessions get their own rates back. It returns the evicted sessions.
func (a *Admission) Review(now time.Time) (evicted []*Stream) {
	a.mu.Lock()
	had, c := a.gpus, a.capacity()

	// Without any GPU, evicting a session would not help the others.
	if len(a.streams) == 0 || c.GPUs == 0 || !a.mustReadmit(now, c.GPUs) {
		a.mu.Unlock()
		return nil
	}

	a.notePhases()
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

	// A stream removes its promise when it closes.
	for _, s := range evicted {
		s.evict(&EvictedError{Application: s.app.graph.Name, Had: had, Left: c.GPUs})
	}
	return evicted
}

// mustReadmit reports whether the promises must be checked again for this number of GPUs.
func (a *Admission) mustReadmit(now time.Time, gpus int) bool {
	if gpus >= a.gpus {
		more := gpus > a.gpus
		a.gpus, a.missed = gpus, time.Time{}
		return more && a.slowed
	}
	if a.missed.IsZero() {
		a.missed = now
	}

	// Require a hurt session: the trial is cautious, and measurements take precedence.
	return now.Sub(a.missed) >= evictAfter && slices.ContainsFunc(a.streams, func(s *Stream) bool { return s.Standing().Hurt })
}

// notePhases sets the phases of the sessions that have had a frame, before which they are unknown. Decisions do so, as they
// hold the lock for a while: no frame may wait for that. The caller holds the lock.
func (a *Admission) notePhases() {
	for i, s := range a.streams {
		// A promise is periodic: only the offset within its period matters.
		if at := s.firstFrame(); !at.IsZero() {
			p := &a.promises[i]
			p.Phase = at.Sub(a.begun) % p.Period()
		}
	}
}
