// Package invariants checks what a scheduler receives and decides against rules that must never break. The simulator,
// the engine's scripts and the fuzzers of core/sched report to the same Observer, so each rule is written once. All
// times are ns on the reporter's clock. The package does not act, reads no clock and knows no scheduler.
//
// The rules, by the numbers that objections begin with:
//
//	C1 a request that was accepted ends once: it ends, or enters a batch, only while it is queued;
//	C2 no request is queued after its deadline;
//	C3 a GPU's batches do not overlap in plan, and it holds at most AheadMost unfinished batches;
//	C4 no batch is planned to start before its order arrives or after its latest start, or to end after a deadline in it;
//	C5 no batch is empty or above its profile's maximum;
//	V1 no request is in a batch that is less accurate than the request's floor.
package invariants

import "slices"

// AheadMost is the most unfinished batches that a GPU may hold.
const AheadMost = 3

// Observer checks the rules. It keeps no requests and no GPUs itself: the reporter keeps a Life for each request and
// a GPU for each GPU. It is not safe for concurrent use.
type Observer struct {
	Object func(format string, a ...any) // receives an objection, like fmt.Sprintf
}

// Life is the known state of one request.
type Life struct {
	Queued   int   // times that it is certainly queued
	Maybe    int   // further times that it may be queued, if reports cannot tell
	Running  int   // batches in progress that hold it
	Deadline int64 // as the scheduler knows it
}

// Queue records that a request was accepted.
func (l *Life) Queue(deadline int64) {
	l.Queued++
	l.Deadline = deadline
}

// Suspect records that a request may be queued once more than is known, until the later of the deadlines.
func (l *Life) Suspect(deadline int64) {
	l.Maybe++
	l.Deadline = max(l.Deadline, deadline)
}

// End records that a request of a source ended or entered a batch, as words says. It reports whether the request was
// queued (C1).
func (o *Observer) End(l *Life, source, id uint64, words string) bool {
	// Certain entries end first, so that a doubtful one stays doubtful.
	switch {
	case l.Queued > 0:
		l.Queued--
	case l.Maybe > 0:
		l.Maybe--
	default:
		o.Object("C1: request %d of source %d %s, but is not queued: %+v", id, source, words, *l)
		return false
	}

	return true
}

// Overdue objects to a request that is still queued after its deadline (C2).
func (o *Observer) Overdue(l *Life, source, id uint64, now int64) {
	if l.Queued > 0 && l.Deadline < now {
		o.Object("C2: request %d of source %d is queued at %d, after its deadline %d: %+v", id, source, now, l.Deadline, *l)
	}
}

// Batch is a batch as it was ordered.
type Batch struct {
	ID            uint64
	Size, Most    int   // number of its requests, and its profile's maximum
	Arrives       int64 // the earliest time at which the order reaches its GPU's host
	Start, Latest int64
	Finish        int64 // Start and ℓ(Size)
}

// GPU is the planned state of a GPU.
type GPU struct {
	Free  int64   // when the last of its batches ends
	Ahead []Batch // unfinished batches, oldest first
}

// Send records a batch that was ordered, and checks C3 to C5.
func (o *Observer) Send(g *GPU, b Batch) {
	// Each rule is checked on its own: a batch that breaks two gets two objections, the graver one last.
	if b.Size <= 0 || b.Size > b.Most {
		o.Object("C5: batch %d of %d requests, its profile allows 1 to %d", b.ID, b.Size, b.Most)
	}
	if b.Start < b.Arrives || b.Start > b.Latest {
		o.Object("C4: batch %d is to start at %d, its order arrives at %d and its latest start is %d", b.ID, b.Start, b.Arrives, b.Latest)
	}
	if b.Start < g.Free {
		o.Object("C3: batch %d is to start at %d on a GPU that is busy until %d", b.ID, b.Start, g.Free)
	}

	g.Free = b.Finish
	if g.Ahead = append(g.Ahead, b); len(g.Ahead) > AheadMost {
		o.Object("C3: a GPU holds %d batches that are not done, at most %d", len(g.Ahead), AheadMost)
	}
}

// Keeps objects if a batch is planned to end after the deadline of a request in it (C4).
func (o *Observer) Keeps(b *Batch, source, id uint64, deadline int64) {
	if b.Finish > deadline {
		o.Object("C4: batch %d ends at %d, after the deadline %d of request %d of source %d", b.ID, b.Finish, deadline, id, source)
	}
}

// Reaches objects if a batch is less accurate than the floor of a request in it (V1).
func (o *Observer) Reaches(batch uint64, accuracy float64, source, id uint64, floor float64) {
	if accuracy < floor {
		o.Object("V1: batch %d has an accuracy of %v, the floor of request %d of source %d is %v", batch, accuracy, id, source, floor)
	}
}

// Complete records that a batch has ended and when its GPU is free. The measured end replaces the planned one, and
// later batches move with it. It reports whether the GPU had the batch; earlier batches are finished too.
func (g *GPU) Complete(id uint64, free int64) bool {
	k := slices.IndexFunc(g.Ahead, func(b Batch) bool { return b.ID == id })
	if k < 0 {
		return false
	}

	// A GPU runs its batches in order, so the end of one implies the end of those before it.
	g.Ahead = append(g.Ahead[:0], g.Ahead[k+1:]...)
	g.Free = g.After(free)
	return true
}

// After returns when the last of a GPU's batches ends if the first may start at time free.
func (g *GPU) After(free int64) int64 {
	for _, b := range g.Ahead {
		free = max(free, b.Start) + b.Finish - b.Start
	}

	return free
}
