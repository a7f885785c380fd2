package prepare

import (
	"container/heap"
	"time"

	"downbeat.dev/core/limits"
	"downbeat.dev/core/sim"
)

// Forms are the ways to submit a request whose input a hook prepares: without a hook; after the hook; at once, without and
// with a hint of when the input will be there; and with a hint, but without word of a hook that returns early.
var Forms = []string{"none", "after", "overlap", "hint", "hint-alone"}

// server is a scheduler with frontends before it. A message takes a trip from a frontend to the scheduler, and as long
// from there to a backend, which reads at once; World.Ctrl is the second.
type server struct {
	*sim.Downbeat
	w      *sim.World
	o      run
	hooks  []time.Duration // by request
	learnt []limits.Hooks  // by model
	events events

	readyAt []sim.Time // by request: when the scheduler is told that its input will be there
	refused int        // rows whose input was not there
}

// run describes one simulation.
type run struct {
	form  string
	trip  sim.Duration
	exact bool // the frontend knows each hook's time; otherwise it learns
}

// event is something that happens to a request outside the scheduler.
type event struct {
	at     sim.Time
	number int // of the events, so that those of one moment keep their order
	r      int32
	what   uint8
}

// What happens to a request.
const (
	submitted uint8 = iota // its Submit reaches the scheduler
	early                  // the same, before its input is there
	hastened               // the scheduler learns that its input is there earlier
	returned               // its hook returns
)

type events struct {
	list  []event
	count int
}

func (e *events) Len() int      { return len(e.list) }
func (e *events) Swap(i, k int) { e.list[i], e.list[k] = e.list[k], e.list[i] }
func (e *events) Push(x any)    { e.list = append(e.list, x.(event)) }
func (e *events) Less(i, k int) bool {
	a, b := &e.list[i], &e.list[k]
	return a.at < b.at || a.at == b.at && a.number < b.number
}

// Pop implements heap.Interface.
func (e *events) Pop() any {
	x := e.list[len(e.list)-1]
	e.list = e.list[:len(e.list)-1]
	return x
}

func (s *server) schedule(at sim.Time, r int32, what uint8) {
	s.events.count++
	heap.Push(&s.events, event{at, s.events.count, r, what})
}

// inputAt returns the time at which a request's input is prepared.
func (s *server) inputAt(r int32) sim.Time {
	return sim.Time(s.w.Arrivals[r].At).Add(sim.Duration(s.hooks[r]))
}

// Arrive implements sim.Server: a request comes to its frontend, which begins its hook.
func (s *server) Arrive(now sim.Time, r, m int32) {
	there := now.Add(s.o.trip)
	s.schedule(s.inputAt(r), r, returned)
	switch s.o.form {
	case "none", "overlap":
		s.schedule(there, r, submitted)
	case "after":
		s.schedule(s.inputAt(r).Add(s.o.trip), r, submitted)
	default:
		// Of the first hooks nothing is known: their requests are sent after them.
		took := s.expected(r, m)
		if took == 0 {
			s.schedule(s.inputAt(r).Add(s.o.trip), r, submitted)
			return
		}
		s.readyAt[r] = now.Add(took)
		s.schedule(there, r, early)
	}
}

// expected returns the time after which the frontend expects a hook to return, as package frontend does; 0: unknown.
func (s *server) expected(r, m int32) sim.Duration {
	if s.o.exact {
		return sim.Duration(s.hooks[r])
	}
	return min(sim.Duration(s.learnt[m].Expected()), s.w.Models[m].SLO/limits.LearntShare)
}

// happen carries out an event.
func (s *server) happen(now sim.Time, e event) {
	m := s.w.Arrivals[e.r].Model
	switch e.what {
	case submitted:
		s.Downbeat.Arrive(now, e.r, m)
	case early:
		// The scheduler counts the time from the arrival of the Submit; its order takes another trip.
		s.Downbeat.ArriveEarly(now, e.r, m, s.readyAt[e.r])
	case hastened:
		s.Downbeat.Hasten(now, e.r, m)
	case returned:
		s.learnt[m].Add(s.hooks[e.r])
		if s.o.form == "hint" && s.readyAt[e.r].Sub(now) >= sim.Duration(limits.HastenLeast) {
			s.schedule(now.Add(s.o.trip), e.r, hastened)
		}
	}
}

// refuse reports whether a backend that gets an order sent now reads a request's input too early. The frontend then
// submits the request again, when it has heard of it and the hook has returned.
func (s *server) refuse(r int32) bool {
	read := s.w.Now().Add(s.w.Ctrl)
	if s.o.form == "none" || s.inputAt(r) <= read {
		return false
	}
	s.refused++
	s.schedule(max(read.Add(s.o.trip), s.inputAt(r)).Add(s.o.trip), r, submitted)
	return true
}

// NextWake implements sim.Server.
func (s *server) NextWake() sim.Time {
	at := s.Downbeat.NextWake()
	if s.events.Len() > 0 {
		at = min(at, s.events.list[0].at)
	}
	return at
}

// Wake implements sim.Server.
func (s *server) Wake(now sim.Time) {
	for s.events.Len() > 0 && s.events.list[0].at <= now {
		s.happen(now, heap.Pop(&s.events).(event))
	}
	s.Downbeat.Wake(now)
}
