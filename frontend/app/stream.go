package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	graph "downbeat.dev/core/app"
)

// Session is the promise of a stream of frames.
type Session struct {
	Rate    float64       // frames/s; faster frames are refused
	Latency time.Duration // of each frame; 0: the application's
	Floor   float64       // lowest acceptable accuracy of an answer, 0 to 1
	Lease   time.Duration // the session is closed after this time without a frame; 0: DefaultLease
	Name    string        // for people; may be empty
	// LeastRate is the lowest acceptable rate when GPUs are lost, frames/s; 0: Rate. All sessions are slowed to it
	// before any is evicted.
	LeastRate float64
	Claim     uint8 // when GPUs are lost, sessions with a smaller claim give way first; of equal claims, the latest
	// Triggered means that frames come at the times of Stream.NextFrame, so that frames of several sessions form a
	// batch.
	Triggered bool
}

// DefaultLease is how long a session without frames stays open.
const DefaultLease = 30 * time.Second

const (
	streamsMax = 1024
	rateMax    = 1e6
	rateLeast  = 1e-6 // a frame in twelve days; a period must fit into a time.Duration several times
	nameMax    = 128  // bytes
	// burstFrames is how many frames may come early, since networks bunch them.
	burstFrames = 3
)

// Stream is an open session.
type Stream struct {
	app     *App
	number  uint64 // among the App's sessions
	session Session
	states  []stepState // by step
	lease   *time.Timer
	offsets []time.Duration // by step, from admission; nil: the application's, scaled
	phase   time.Time       // a time at which a frame may come, as at every period after it; zero: unknown
	changed chan struct{}

	mu       sync.Mutex // guards the fields below
	due      time.Time  // of the next frame
	first    time.Time  // when the first frame came; zero: none has
	closed   bool
	evicted  *EvictedError // why it is closed; nil: not evicted
	rate     float64       // the present rate
	standing Standing
	recent   window
}

// stepState is a step's state between frames: the state of its hook, or the name of its sequence.
type stepState struct {
	turn  chan struct{} // cap 1; the frame that has put a value in runs the step
	value any           // only the frame with the turn reads and writes it
}

// takeTurn waits until the session's earlier frames have left the step, at most until the given time.
func (s *stepState) takeTurn(ctx context.Context, until time.Time) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	default:
	}

	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *stepState) endTurn() { <-s.turn }

// Open begins a session. ctx applies only to Open itself. The error wraps ErrInvalid, ErrSessions, ErrRefused or, for
// a closed App, ErrClosed.
func (a *App) Open(ctx context.Context, s Session) (*Stream, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s.Latency = cmp.Or(s.Latency, a.graph.Latency)
	s.Lease = cmp.Or(s.Lease, DefaultLease)
	if err := s.check(); err != nil {
		return nil, err
	}

	// Count the session before admission, so that the limit also bounds pending decisions.
	stream := &Stream{app: a, session: s, rate: s.Rate, states: make([]stepState, len(a.steps)), changed: make(chan struct{}, 1)}
	for j := range stream.states {
		stream.states[j].turn = make(chan struct{}, 1)
	}

	if err := a.streams.addStream(stream); err != nil {
		return nil, err
	}
	return a.startStream(stream)
}

// check returns an error for a session that no App can promise.
func (s *Session) check() error {
	switch {
	case !(s.Rate > 0 && s.Rate <= rateMax):
		return fmt.Errorf("%w: session: rate %v: want more than 0 and at most %v frames/s", ErrInvalid, s.Rate, float64(rateMax))
	case s.Latency < 0 || s.Latency > graph.LatencyMax:
		return fmt.Errorf("%w: session: latency %v: want more than 0 and at most %v", ErrInvalid, s.Latency, graph.LatencyMax)
	case !(s.LeastRate >= 0 && s.LeastRate <= s.Rate):
		return fmt.Errorf("%w: session: least rate %v: want 0 to the rate, %v frames/s", ErrInvalid, s.LeastRate, s.Rate)
	case s.Rate < rateLeast || s.LeastRate > 0 && s.LeastRate < rateLeast:
		return fmt.Errorf("%w: session: rate %v, least rate %v: want no less than %v frames/s", ErrInvalid, s.Rate, s.LeastRate, rateLeast)
	case !(s.Floor >= 0 && s.Floor <= 1):
		return fmt.Errorf("%w: session: floor %v: want 0 to 1", ErrInvalid, s.Floor)
	case s.Lease < 0:
		return fmt.Errorf("%w: session: lease %v: want more than 0", ErrInvalid, s.Lease)
	case len(s.Name) > nameMax:
		return fmt.Errorf("%w: session: name of %d bytes: want at most %d", ErrInvalid, len(s.Name), nameMax)
	}
	return nil
}

// startStream asks admission for a counted session and starts its lease.
func (a *App) startStream(stream *Stream) (*Stream, error) {
	if a.admission != nil {
		if err := a.admission.admitStream(stream); err != nil {
			a.streams.removeStream(stream)
			return nil, err
		}
	}

	// Set the lease under the lock: it may expire at once, and Close reads it.
	stream.mu.Lock()
	closed := stream.closed
	if !closed {
		stream.lease = time.AfterFunc(stream.session.Lease, stream.Close)
	}
	stream.mu.Unlock()

	// The App may have been closed meanwhile, and the session with it. If that was before admission, only this call
	// knows of the promise.
	if closed {
		if a.admission != nil {
			a.admission.release(stream)
		}
		return nil, ErrClosed
	}
	return stream, nil
}

// Session returns the promise.
func (s *Stream) Session() Session { return s.session }

// Run answers a frame of the session, within its latency or ctx's deadline, whichever is earlier. Besides the errors
// of App.Run it returns ErrClosed and ErrTooFast.
func (s *Stream) Run(ctx context.Context, f Frame) (*Answer, error) {
	if err := s.admitFrame(time.Now()); err != nil {
		return nil, err
	}
	answer, err := s.app.runFrame(ctx, f, s.session.Latency, s)

	// Invalid and canceled frames break no promise.
	if !errors.Is(err, ErrInvalid) && !errors.Is(err, context.Canceled) {
		s.noteFrame(err == nil, err == nil && answer.Slack >= 0)
	}
	return answer, err
}

// admitFrame enforces the session's rate: a frame is due one period after the previous one, and may come a few
// periods early.
func (s *Stream) admitFrame(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.evicted != nil {
		return s.evicted
	}
	if s.closed {
		return ErrClosed
	}

	// A refused frame also shows that the client is alive.
	s.lease.Reset(s.session.Lease)
	period := s.period()

	if now.Before(s.due.Add(-burstFrames * period)) {
		s.standing.Skipped++
		return ErrTooFast
	}
	if s.first.IsZero() {
		s.first = now
	}

	// Time without frames allows no later burst.
	if s.due.Before(now) {
		s.due = now
	}
	s.due = s.due.Add(period)
	return nil
}

// firstFrame returns when the session's first frame came; zero: none has.
func (s *Stream) firstFrame() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first
}

// evict ends the session because of missing GPUs.
func (s *Stream) evict(why *EvictedError) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.evicted, s.standing.Evicted = why, why.Error()
	s.tellChange()
	s.mu.Unlock()

	s.app.stats.evicted.Add(1)
	s.Close()
}

// changeRate changes the rate of the session's frames, at most to its own, with one of them at phase.
func (s *Stream) changeRate(rate float64, now, phase time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rate == s.rate {
		return
	}

	// In a slowed session no frame may arrive earlier than admission has planned.
	s.rate, s.standing.Slowed = rate, 0
	if rate < s.session.Rate {
		s.standing.Slowed = rate
		s.due = nextOf(phase, s.period(), now).Add(burstFrames * s.period())
	}
	s.tellChange()
}

// period returns the time from one frame to the next. The caller holds the lock.
func (s *Stream) period() time.Duration { return time.Duration(float64(time.Second) / s.rate) }

// Close ends the session. Frames under way end normally. A second Close does nothing.
func (s *Stream) Close() {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	if s.lease != nil { // nil: admission has not decided yet
		s.lease.Stop()
	}
	s.mu.Unlock()
	if !first {
		return
	}

	// Do not hold the stream's lock: Status locks streams while it holds the list's lock.
	s.app.streams.removeStream(s)
	if s.app.admission != nil {
		s.app.admission.release(s)
	}
}
