package sched

import "sort"

// queue holds one model's requests in order of deadline, equal deadlines in order of arrival, side by side
// in one piece of memory. Requests with the model's own SLO arrive in order; one with a shorter budget
// moves those behind it or those before it, whichever are fewer, in one go.
type queue struct {
	buf  []Request // those queued are the n from head on
	head uint32
	n    int32
	last Time // deadline of the last request: the memory need not be read for it
	// since makes head + n − since the requests that came since it was last set so, those gone or
	// refused too.
	since uint32
	calm  int32 // with fewer requests queued, one more behind them changes nothing else
}

func (q *queue) len() int { return int(q.n) }

func (q *queue) at(i int) *Request {
	return &q.buf[int(q.head)+i]
}

// first returns the earliest deadline; the queue must not be empty.
func (q *queue) first() Time { return q.at(0).Deadline }

// came counts the requests since since was set, modulo 2³². It costs a request nothing.
func (q *queue) came() uint32 { return q.head + uint32(q.n) - q.since }

// full says that room must be made before the next request.
func (q *queue) full() bool { return int(q.head)+int(q.n) == len(q.buf) }

// open makes room for a request and returns its place; Deadline is set, the rest is the caller's
// to write. The queue must not be full.
func (q *queue) open(deadline Time) (r *Request, place int) {
	i := int(q.n)
	q.n++
	if i > 0 && q.last > deadline {
		i = q.squeeze(i, deadline)
	} else {
		q.last = deadline
	}
	r = q.at(i)
	r.Deadline = deadline
	return r, i
}

// squeeze makes room among the first n requests, before those with later deadlines.
func (q *queue) squeeze(n int, deadline Time) int {
	p := sort.Search(n, func(k int) bool { return q.at(k).Deadline > deadline })
	if p < n/2 && q.head > 0 {
		q.head--
		q.since-- // came counts places from head on
		q.shift(1, p, -1)
	} else {
		q.shift(p, n-p, 1)
	}
	return p
}

// shift moves the k requests from place i on by so many places.
func (q *queue) shift(i, k, by int) {
	from := int(q.head) + i
	copy(q.buf[from+by:], q.buf[from:from+k])
}

// room makes room for a request behind the last.
func (q *queue) room(mem *memory) {
	if q.head > 0 && 2*int(q.n) <= len(q.buf) {
		q.move(q.buf)
		return
	}
	old := q.buf
	q.move(mem.take(2 * len(old)))
	mem.give(old)
}

// move takes the queue to the front of a piece of memory, which may be its own.
func (q *queue) move(buf []Request) {
	copy(buf, q.buf[q.head:q.head+uint32(q.n)])
	q.buf = buf
	q.since -= q.head
	q.head = 0
}

// shrink gives a large piece of memory back; the queue must be empty.
func (q *queue) shrink(mem *memory) {
	if len(q.buf) > pieceKept {
		mem.give(q.buf)
		q.buf = nil
	}
}

// pieceKept is how large a piece an idle model may keep: 48 KiB.
const pieceKept = 1024

// pop removes the first k requests.
func (q *queue) pop(k int, ranked *int32) {
	for i := 0; *ranked > 0 && i < k; i++ {
		if q.at(i).Priority > 0 {
			*ranked--
		}
	}
	q.head += uint32(k)
	if q.n -= int32(k); q.n == 0 {
		q.move(q.buf) // what was used last is nearest
	}
	q.end()
}

// end notes the last deadline anew.
func (q *queue) end() {
	if q.n > 0 {
		q.last = q.at(int(q.n) - 1).Deadline
	}
}

// remove takes out request i.
func (q *queue) remove(i int, ranked *int32) {
	if q.at(i).Priority > 0 {
		*ranked--
	}
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

// find returns the place of a request, -1 when it is not queued.
func (q *queue) find(id RequestID, origin uint32) int {
	for i := range int(q.n) {
		if r := q.at(i); r.ID == id && r.Origin == origin {
			return i
		}
	}
	return -1
}

// choose appends b requests to out and removes them: the head, which sets the batch's deadline, and
// then the higher priorities, within one the earlier deadlines.
func (q *queue) choose(b int, out []Request, ranked *int32) []Request {
	var count [256]int32
	for i := 1; i < int(q.n); i++ {
		count[q.at(i).Priority]++
	}
	least, room := 255, int32(b-1) // of priority least room requests still fit, above all do
	for ; least > 0 && count[least] <= room; least-- {
		room -= count[least]
	}
	kept := 0
	for i := range int(q.n) {
		r := q.at(i)
		pr := int(r.Priority)
		if pr == least && i > 0 {
			room--
		}
		if i == 0 || pr > least || pr == least && room >= 0 {
			out = append(out, *r)
			if pr > 0 {
				*ranked--
			}
			continue
		}
		*q.at(kept) = *r
		kept++
	}
	q.cut(b)
	return out
}

// mayPass says whether a window may slide past request i and drop it: not while one of a lower
// priority is queued.
func (q *queue) mayPass(i int, ranked *int32) bool {
	return *ranked == 0 || q.at(i).Priority <= q.at(q.lowest()).Priority
}

// lowest returns the place of the request to give up first: of the lowest priority the one with
// the latest deadline.
func (q *queue) lowest() int {
	best := int(q.n) - 1
	for i := best; i >= 0 && q.at(best).Priority > 0; i-- {
		if q.at(i).Priority < q.at(best).Priority {
			best = i
		}
	}
	return best
}
