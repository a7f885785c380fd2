package frontend

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/core/model"
)

// Limits of a client's sequences.
const (
	sequencesMax     = 1 << 16
	sequenceBytesMax = 1 << 30 // of all states
	sequenceNameMax  = 128
)

// sequenceKey names a sequence. Models and versions have separate sequences.
type sequenceKey struct {
	model, version string // version as named in the requests
	id             uint64
	name           string
}

// sequence is one that has started.
type sequence struct {
	turn  chan struct{} // cap 1; the goroutine whose send succeeded runs a step
	of    *Model        // the model that made the state, or will
	state [][]byte      // by state; nil: the initial states, or held has them. Written by the holder of the turn
	held  *heldStates   // states on the backend of the latest step; nil: none. Written by the holder of the turn
	used  int64         // when its latest step was requested or ended, on the client's clock; guarded by sequences.mu
	steps int           // waiting or running; guarded by sequences.mu
	ended bool          // written by the holder of the turn
}

// sequences are the sequences of a client.
type sequences struct {
	mu    sync.Mutex
	open  map[sequenceKey]*sequence
	bytes int          // upper bound of the size of the states
	swept int64        // when idle sequences were last searched for
	plain atomic.Int64 // until when all states are sent to the client, because a backend could not hold them
}

// joinSequence finds a step's sequence, or starts one. As in Triton, a start ends an earlier sequence of the same
// name.
func (q *sequences) joinSequence(key sequenceKey, m *Model, start bool, now int64) (*sequence, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sweepIdle(now)

	// A new start discards what is left of the earlier sequence.
	s := q.open[key]
	if s != nil && (start || s.isIdle(now)) {
		q.forgetSequence(key, s)
		s = nil
	}
	if s != nil {
		s.steps++
		return s, nil
	}
	if !start {
		return nil, missingStart(&Request{Model: key.model, Sequence: Sequence{ID: key.id, Name: key.name}})
	}

	// States are memory of this process, which clients must not be able to exhaust.
	bytes := m.fullOutput - m.OutputBytes
	if len(q.open) >= sequencesMax || q.bytes+bytes > sequenceBytesMax {
		return nil, &OutcomeError{Reason: model.QueueFull, Model: m.Name, Local: true,
			Cause: fmt.Errorf("%d sequences with states of %d bytes are open, the limits are %d and %d", len(q.open), q.bytes, sequencesMax, sequenceBytesMax)}
	}

	if q.open == nil {
		q.open = map[sequenceKey]*sequence{}
	}
	s = &sequence{turn: make(chan struct{}, 1), of: m, used: now, steps: 1}
	key.version = strings.Clone(key.version) // it may alias a message
	q.open[key] = s
	q.bytes += bytes
	return s, nil
}

// leaveSequence ends a step; over ends its sequence.
func (q *sequences) leaveSequence(key sequenceKey, s *sequence, over bool, now int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s.steps--
	s.used = now

	// Another sequence may have started under its name meanwhile.
	if over && q.open[key] == s {
		q.forgetSequence(key, s)
	}
}

func (q *sequences) forgetSequence(key sequenceKey, s *sequence) {
	delete(q.open, key)
	q.bytes -= s.of.fullOutput - s.of.OutputBytes
}

// isIdle reports whether a sequence has had no step for longer than its model allows.
func (s *sequence) isIdle(now int64) bool { return s.steps == 0 && now-s.used > s.of.Sequence.Idle }

// sweepIdle forgets idle sequences, once a second.
func (q *sequences) sweepIdle(now int64) {
	if now-q.swept < int64(time.Second) {
		return
	}
	q.swept = now

	for key, s := range q.open {
		if s.isIdle(now) {
			q.forgetSequence(key, s)
		}
	}
}
