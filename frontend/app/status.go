package app

import (
	"cmp"
	"encoding/json"
	"io"
	"slices"
	"time"
)

// Status is the state of the sessions of a Set's applications, for people.
type Status struct {
	Applications []ApplicationStatus `json:"applications"`
}

// ApplicationStatus is the status of one application. Its Frames include those without a session.
type ApplicationStatus struct {
	Name     string          `json:"name"`
	Latency  time.Duration   `json:"latency_ns"`
	Steps    []string        `json:"steps"`
	Frames   uint64          `json:"frames"`
	Failed   uint64          `json:"failed"`
	Sessions []SessionStatus `json:"sessions"` // by number
	Latest   []FrameTrace    `json:"latest"`   // newest first
	Hurt     uint64          `json:"hurt"`     // times that a session's promise was broken
	Evicted  uint64          `json:"evicted"`  // sessions, because of missing GPUs
}

// SessionStatus is the status of one open session.
type SessionStatus struct {
	Number  uint64        `json:"number"`
	Name    string        `json:"name,omitempty"`
	Rate    float64       `json:"rate"` // promised, frames/s
	Latency time.Duration `json:"latency_ns"`
	Standing
}

// Status returns counts and the latest frames. It is not for the hot path.
func (a *App) Status() ApplicationStatus {
	counts := a.Stats()
	s := ApplicationStatus{Name: a.graph.Name, Latency: a.graph.Latency, Frames: counts.Frames, Failed: counts.Failed, Hurt: counts.Hurt, Evicted: counts.Evicted,
		Sessions: []SessionStatus{}, Latest: a.latest.latest()}
	for j := range a.steps {
		s.Steps = append(s.Steps, a.steps[j].Name)
	}

	a.streams.mu.Lock()
	for stream := range a.streams.open {
		s.Sessions = append(s.Sessions, SessionStatus{Number: stream.number, Name: stream.session.Name, Rate: stream.session.Rate,
			Latency: stream.session.Latency, Standing: stream.Standing()})
	}
	a.streams.mu.Unlock()

	// Sort: a map has no order, and people compare successive outputs.
	slices.SortFunc(s.Sessions, func(a, b SessionStatus) int { return cmp.Compare(a.Number, b.Number) })
	return s
}

// Status returns the status of all applications.
func (s *Set) Status() Status {
	status := Status{Applications: []ApplicationStatus{}}
	for _, one := range s.all {
		status.Applications = append(status.Applications, one.app.Status())
	}
	return status
}

// WriteStatus writes a Status as JSON.
func (s *Set) WriteStatus(w io.Writer) error { return json.NewEncoder(w).Encode(s.Status()) }
