// Package loglimit limits repeated log lines: equal lines are written a few times, and then once a minute with the
// number of omitted lines. It does not format lines; the next handler does.
package loglimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Limits of equal lines.
const (
	burst     = 5   // warnings and errors written before any is omitted
	burstInfo = 100 // the same for lines below warning
	every     = time.Minute
	linesMax  = 4096 // different lines that are counted separately
)

// isSubject reports whether an attribute distinguishes lines with the same message: the name of a peer, a model, or a field
// of a model's configuration. Other attributes, such as an address or an error's text, may differ in each line.
func isSubject(key string) bool { return key == "name" || key == "model" || key == "field" }

// addSubject adds an attribute to a line's subjects, if it is one.
func addSubject(about string, a slog.Attr) string {
	if !isSubject(a.Key) {
		return about
	}
	return about + "\x00" + a.Value.String()
}

// line is the key of equal lines.
type line struct {
	level   slog.Level
	message string
	about   string
}

// count counts the written and omitted copies of a line.
type count struct {
	credit  int
	last    time.Time // when credit was last given
	leftOut int
}

// state is shared by a Handler and the handlers derived from it.
type state struct {
	now func() time.Time

	mu    sync.Mutex
	lines map[line]*count
}

// Handler is a slog.Handler that omits repeated lines. Its methods may be called concurrently.
type Handler struct {
	next  slog.Handler
	state *state
	about string // the subjects that With gave
}

// New returns a Handler that passes the lines that it does not omit to next.
func New(next slog.Handler) *Handler {
	return &Handler{next: next, state: &state{now: time.Now, lines: map[line]*count{}}}
}

// Enabled implements slog.Handler.
func (h *Handler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

// Handle implements slog.Handler.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	key := line{r.Level, r.Message, h.about}
	r.Attrs(func(a slog.Attr) bool {
		key.about = addSubject(key.about, a)
		return true
	})

	leftOut, ok := h.state.admitLine(key)
	if !ok {
		return nil
	}
	if leftOut > 0 {
		// Clone: other handlers may hold the record.
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out", leftOut))
	}
	return h.next.Handle(ctx, r)
}

// admitLine reports whether to write a line, and how many equal lines were omitted before it.
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

	// Count omitted lines; the next written line reports the count.
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

// forgetOld removes lines that have not come for a while, or all lines if none is old: a flood of new names gets more
// lines, not more memory. The caller holds the lock.
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
		about = addSubject(about, a)
	}
	return &Handler{next: h.next.WithAttrs(attrs), state: h.state, about: about}
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{next: h.next.WithGroup(name), state: h.state, about: h.about}
}
