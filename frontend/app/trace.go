package app

import (
	"slices"
	"sync"
	"time"
)

// FrameTrace is the course of one frame: its steps over time.
type FrameTrace struct {
	Session uint64        `json:"session"` // its number; 0: none
	Begun   time.Time     `json:"begun"`
	Elapsed time.Duration `json:"elapsed_ns"`
	Budget  time.Duration `json:"budget_ns"`
	Error   string        `json:"error,omitempty"`
	Steps   []StepTrace   `json:"steps"` // in the order of the graph's steps
}

// StepTrace is one step of a frame. Times count from the frame's begin.
type StepTrace struct {
	From     time.Duration `json:"from_ns"`
	To       time.Duration `json:"to_ns"`
	Requests int           `json:"requests"`
	Again    bool          `json:"again,omitempty"` // it missed its own deadline and was asked again
	End      string        `json:"end,omitempty"`   // failed, canceled or skipped; empty: answered
}

// tracesKept is the number of latest frames that an App keeps.
const tracesKept = 64

// traces are the latest frames of an App.
type traces struct {
	mu   sync.Mutex
	kept [tracesKept]FrameTrace
	n    int // frames since the start
}

// addFrame stores an ended frame in the memory of an older one.
func (t *traces) addFrame(r *run) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := &t.kept[t.n%tracesKept]
	t.n++

	f.Session, f.Begun, f.Elapsed, f.Budget, f.Error = 0, r.begun, time.Since(r.begun), r.deadline.Sub(r.begun), ""
	if r.stream != nil {
		f.Session = r.stream.number
	}
	if r.err != nil {
		f.Error = r.err.Error()
	}
	f.Steps = append(f.Steps[:0], r.steps...)
}

// latest returns copies, the newest first.
func (t *traces) latest() (all []FrameTrace) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range min(t.n, tracesKept) {
		f := t.kept[(t.n-1-i)%tracesKept]

		// Clone: later frames overwrite the steps in the ring.
		f.Steps = slices.Clone(f.Steps)
		all = append(all, f)
	}
	return all
}
