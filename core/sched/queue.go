package sched

import "sort"

// queue holds one model's requests in order of deadline, equal deadlines in order of arrival, contiguously in one
// piece of memory. Requests with the model's own SLO arrive in order; one with a shorter budget moves either the
// requests after it or those before it, whichever are fewer, in one copy.
type queue struct {
	buf  []Request // the queued ones are the n from head on
	head uint32
	n    int32
	last Time // deadline of the last request, which saves reading its memory
	// since makes head + n − since the number of requests that came since it was last set, including those removed or
	// refused.
	since uint32
	quiet int32 // while fewer requests are queued, another one at the end changes nothing else
}

func (q *queue) len() int { return int(q.n) }

func (q *queue) at(i int) *Request {
	return &q.buf[int(q.head)+i]
}

// first returns the earliest deadline; the queue must not be empty.
func (q *queue) first() Time { return q.at(0).Deadline }

// came returns the number of requests that came since since was set, modulo 2³². It costs nothing per request.
func (q *queue) came() uint32 { return q.head + uint32(q.n) - q.since }

// full reports whether room must be made before the next request.
func (q *queue) full() bool { return int(q.head)+int(q.n) == len(q.buf) }

// insert adds a request and returns it with its place; Deadline is set, the caller writes the rest. The queue must
// not be full.
func (q *queue) insert(deadline Time) (r *Request, place int) {
	i := int(q.n)
	q.n++
	if i > 0 && q.last > deadline {
		i = q.insertBefore(i, deadline)
	} else {
		q.last = deadline
	}
	r = q.at(i)
	r.Deadline = deadline
	return r, i
}

// insertBefore makes room among the first n requests, before those with later deadlines.
func (q *queue) insertBefore(n int, deadline Time) int {
	p := sort.Search(n, func(k int) bool { return q.at(k).Deadline > deadline })
	if p < n/2 && q.head > 0 {
		// Move the fewer requests: the space in front of the head is free.
		q.head--
		q.since-- // came counts places from head on
		q.shift(1, p, -1)
	} else {
		q.shift(p, n-p, 1)
	}
	return p
}

// shift moves k requests, from place i on, by the given number of places.
func (q *queue) shift(i, k, by int) {
	from := int(q.head) + i
	copy(q.buf[from+by:], q.buf[from:from+k])
}

// makeRoom makes room for a request after the last.
func (q *queue) makeRoom(mem *memory) {
	// Half of the memory is free in front: moving costs less than a larger piece.
	if q.head > 0 && 2*int(q.n) <= len(q.buf) {
		q.move(q.buf)
		return
	}
	old := q.buf
	q.move(mem.take(2 * len(old)))
	mem.give(old)
}

// move moves the queue to the front of a piece of memory, which may be its own.
func (q *queue) move(buf []Request) {
	copy(buf, q.buf[q.head:q.head+uint32(q.n)])
	q.buf = buf
	q.since -= q.head
	q.head = 0
}

// shrink releases a large piece of memory; the queue must be empty.
func (q *queue) shrink(mem *memory) {
	if len(q.buf) > pieceKept {
		mem.give(q.buf)
		q.buf = nil
	}
}

// pieceKept is the largest piece that an idle model keeps: 48 KiB.
const pieceKept = 1024

// pop removes the first k requests.
func (q *queue) pop(k int, r *priorities) {
	r.swept -= int32(k)

	// Without priorities no request needs to be read.
	for i := 0; r.n > 0 && i < k; i++ {
		r.sub(q.at(i).Priority)
	}
	q.head += uint32(k)
	if q.n -= int32(k); q.n == 0 {
		q.move(q.buf) // recently used memory is in the cache
	}
	q.end()
}

// takeFrom appends b requests, from place i on, to out and removes them; those before stay.
func (q *queue) takeFrom(i, b int, out []Request, r *priorities) []Request {
	for k := i; k < i+b; k++ {
		out = append(out, *q.at(k))
		r.sub(q.at(k).Priority)
	}

	// Move the earlier requests up to the end of the batch.
	q.shift(0, i, b)
	q.head += uint32(b)
	q.n -= int32(b)
	r.swept -= int32(b)
	q.end()
	return out
}

// end updates the last deadline.
func (q *queue) end() {
	if q.n > 0 {
		q.last = q.at(int(q.n) - 1).Deadline
	}
}

// remove removes request i.
func (q *queue) remove(i int, r *priorities) {
	r.sub(q.at(i).Priority)
	r.swept-- // a sweep checks one request twice rather than skip one
	if n := int(q.n); i >= n/2 {
		q.shift(i+1, n-1-i, -1)
		q.cut(1)
		return
	}
	q.shift(0, i, 1)
	q.head++
	q.n--
}

// cut removes the last k requests.
func (q *queue) cut(k int) {
	q.n -= int32(k)
	q.since -= uint32(k)
	q.end()
}

// filter removes the requests from place from up to place to for which gone returns true, and returns their number.
func (q *queue) filter(from, to int, r *priorities, gone func(*Request) bool) (removed int) {
	kept := from
	for i := from; i < to; i++ {
		x := q.at(i)
		if gone(x) {
			r.sub(x.Priority)
			continue
		}
		if kept < i {
			*q.at(kept) = *x
		}
		kept++
	}
	if removed = to - kept; removed == 0 {
		return 0
	}
	r.swept -= int32(removed)

	// Close the gap with the requests before it or after it, whichever are fewer.
	if behind := int(q.n) - to; behind <= kept {
		q.shift(to, behind, -removed)
		q.cut(removed)
		return removed
	}
	q.shift(0, kept, removed)
	q.head += uint32(removed)
	q.n -= int32(removed)
	return removed
}

// find returns the place of a request; -1 if it is not among the first searchMax.
func (q *queue) find(id RequestID, origin uint32) int {
	for i := range min(int(q.n), searchMax) {
		if r := q.at(i); r.ID == id && r.Origin == origin {
			return i
		}
	}
	return -1
}
