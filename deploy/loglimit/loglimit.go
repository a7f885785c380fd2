// Package loglimit keeps a log readable while something goes wrong thousands of times: lines that say the
// same are written a few times, then once a minute with the number of those that were left out. It does not
// format lines; that is the handler's behind it.
package loglimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Limits of lines that say the same.
const (
	burst     = 5   // warnings and errors written before any is left out
	burstInfo = 100 // the same for lines that tell of no trouble
	every     = time.Minute
	linesMax  = 4096 // different lines that are told apart
)

// subject is the attribute that tells lines of one message apart. Others, as a stranger's address or an
// error's text, may be new in each line.
const subject = "name"

// line is what counts as the same.
type line struct {
	level   slog.Level
	message string
	about   string
}

// count is how often a line was written and left out.
type count struct {
	credit  int
	last    time.Time // when credit was given
	leftOut int
}

// state is shared by a Handler and those made of it.
type state struct {
	now func() time.Time

	mu    sync.Mutex
	lines map[line]*count
}

// Handler is a slog.Handler that leaves out lines. Its methods may be called from any goroutine.
type Handler struct {
	next  slog.Handler
	state *state
	about string // the subject, where With gave it
}

// New returns a Handler that writes to next what is not left out.
func New(next slog.Handler) *Handler {
	return &Handler{next: next, state: &state{now: time.Now, lines: map[line]*count{}}}
}

// Enabled implements slog.Handler.
func (h *Handler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

// Handle implements slog.Handler.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	key := line{r.Level, r.Message, h.about}
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == subject {
			key.about = a.Value.String()
		}
		return true
	})

	leftOut, ok := h.state.admitLine(key)
	if !ok {
		return nil
	}
	if leftOut > 0 {
		// Other handlers may hold the record: a copy is changed.
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out", leftOut))
	}
	return h.next.Handle(ctx, r)
}

// admitLine tells whether a line is to be written, and how many like it were left out before.
func (s *state) admitLine(key line) (leftOut int, ok bool) {
	full := burst
	if key.level < slog.LevelWarn {
		full = burstInfo
	}
	now := s.now()

	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.lines[key]
	if c == nil {
		if len(s.lines) >= linesMax {
			s.forgetOld(now)
		}
		c = &count{credit: full, last: now}
		s.lines[key] = c
	}

	// A line that has been rare for long may come in a burst again.
	if passed := int(now.Sub(c.last) / every); passed > 0 {
		c.credit = min(full, c.credit+passed)
		c.last = now
	}

	// What is left out is counted, and told with the next line that is written.
	if c.credit == 0 {
		c.leftOut++
		return 0, false
	}

	c.credit--
	if c.credit == 0 {
		c.last = now // the next one is a minute away
	}
	leftOut, c.leftOut = c.leftOut, 0
	return leftOut, true
}

// forgetOld lets go of the lines that have not come for a while, or of all if each has: whoever makes up
// names gets more lines, not more memory. The lock is held.
func (s *state) forgetOld(now time.Time) {
	for k, c := range s.lines {
		if now.Sub(c.last) >= every && c.leftOut == 0 {
			delete(s.lines, k)
		}
	}
	if len(s.lines) >= linesMax {
		clear(s.lines)
	}
}

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	about := h.about
	for _, a := range attrs {
		if a.Key == subject {
			about = a.Value.String()
		}
	}
	return &Handler{next: h.next.WithAttrs(attrs), state: h.state, about: about}
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{next: h.next.WithGroup(name), state: h.state, about: h.about}
}
