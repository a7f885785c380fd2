// Package invariants observes a scheduler's inputs and decisions, and reports violations of its rules. The simulator, the
// engine's scripts and the fuzzers of core/sched report to the same Observer, so that each rule is written once. All
// times are ns on the reporter's clock. Nothing here acts, reads a clock or knows a scheduler.
//
// The rules, by the numbers with which violations begin:
//
//	C1 an accepted request ends once: it ends, or enters a batch, only while it is queued;
//	C2 no request is queued after its deadline;
//	C3 a GPU's planned batches do not overlap, and it holds at most AheadMost unfinished ones;
//	C4 no batch is planned to start before its order arrives or after its latest start, or to end after a deadline in it;
//	C5 no batch is empty or above its profile's largest size;
//	V1 no request is in a batch below the accuracy floor that it asked for.
package invariants

import "slices"

// AheadMost is the largest number of unfinished batches on a GPU.
const AheadMost = 3

// Observer checks the rules. It keeps no requests and no GPUs itself: the reporter keeps a Life per request and a GPU
// per GPU. It is not safe for concurrent use.
type Observer struct {
	Object func(format string, a ...any) // takes a violation, as fmt.Sprintf does
}

// Life is the known state of one request.
type Life struct {
	Queued   int   // times that it is certainly queued
	Maybe    int   // further times that it may be queued, if reports cannot tell
	Running  int   // unfinished batches that hold it
	Deadline int64 // until when it may be queued, as the scheduler knows it, of the times that are certain
	MaybeBy  int64 // the same of the further times: each copy of a request has its own deadline
}

// Queue notes that a request was accepted. The scheduler may have taken it for a copy that may be queued, whose deadline
// then stays.
func (l *Life) Queue(deadline int64) {
	if l.Maybe > 0 {
		deadline = max(deadline, l.MaybeBy)
	}
	l.Queued++
	l.Deadline = deadline
}

// Suspect notes that a request may be queued one more time than is known, until a deadline.
func (l *Life) Suspect(deadline int64) {
	if l.Maybe > 0 {
		deadline = max(deadline, l.MaybeBy)
	}
	l.Maybe++
	l.MaybeBy = deadline
}

// Latest returns the latest deadline that a queued copy of the request may have; 0: none may be queued.
func (l *Life) Latest() int64 {
	switch {
	case l.Maybe == 0 && l.Queued == 0:
		return 0
	case l.Maybe == 0:
		return l.Deadline
	case l.Queued == 0:
		return l.MaybeBy
	}
	return max(l.Deadline, l.MaybeBy)
}

// End notes that a request of a source ended or entered a batch, as words says. It reports whether the request was
// queued (C1).
func (o *Observer) End(l *Life, source, id uint64, words string) bool {
	// End certain entries first, so that uncertain ones stay uncertain. Which copy has ended is not known.
	l.MaybeBy = l.Latest()
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

// Overdue reports a request that is queued after its deadline (C2).
func (o *Observer) Overdue(l *Life, source, id uint64, now int64) {
	if l.Queued > 0 && l.Deadline < now {
		o.Object("C2: request %d of source %d is queued at %d, after its deadline %d: %+v", id, source, now, l.Deadline, *l)
	}
}

// Batch is a batch as ordered.
type Batch struct {
	ID            uint64
	Size, Most    int   // number of its requests, and the largest number in its profile
	Arrives       int64 // earliest time at which the order is on the GPU's host
	Start, Latest int64
	Finish        int64 // Start and ℓ(Size)
}

// GPU is the planned state of a GPU.
type GPU struct {
	Free  int64   // when the last of its batches ends
	Ahead []Batch // unfinished batches, the oldest first
}

// Send records a batch that was ordered, and checks C3 to C5.
func (o *Observer) Send(g *GPU, b Batch) {
	// Check each rule: a batch that breaks two gives two violations, the graver one last.
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

// Keeps reports a batch that is planned to end after the deadline of a request in it (C4).
func (o *Observer) Keeps(b *Batch, source, id uint64, deadline int64) {
	if b.Finish > deadline {
		o.Object("C4: batch %d ends at %d, after the deadline %d of request %d of source %d", b.ID, b.Finish, deadline, id, source)
	}
}

// Reaches reports a batch less accurate than the floor of a request in it (V1).
func (o *Observer) Reaches(batch uint64, accuracy float64, source, id uint64, floor float64) {
	if accuracy < floor {
		o.Object("V1: batch %d has an accuracy of %v, the floor of request %d of source %d is %v", batch, accuracy, id, source, floor)
	}
}

// Complete notes that a batch has ended and when its GPU is free afterwards: the measured end replaces the planned
// one, and later batches move. It reports whether the GPU had the batch. Batches before it have ended, too.
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

// After returns when the last of a GPU's batches ends if the first begins at free at the earliest.
func (g *GPU) After(free int64) int64 {
	for _, b := range g.Ahead {
		free = max(free, b.Start) + b.Finish - b.Start
	}

	return free
}
