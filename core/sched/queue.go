package sched

import "sort"

// queue holds one model's requests in order of deadline, equal deadlines in order of arrival. It
// is a ring of whole requests that grows by doubling: a batch lies side by side in memory. Requests
// with the model's own SLO arrive in order and cost one line; one with a shorter budget moves those
// behind it or those before it, whichever are fewer, in one go.
type queue struct {
	buf  []Request // length is a power of two
	head uint32    // counts on; its low bits are the place in buf
	n    int32
	last Time // deadline of the last request: the ring need not be read for it
	// since makes head + n − since the requests that came since it was last set so, those gone or
	// refused too.
	since uint32
	calm  int32 // with fewer requests queued, one more behind them changes nothing else
}

func (q *queue) len() int { return int(q.n) }

func (q *queue) at(i int) *Request {
	return &q.buf[(q.head+uint32(i))&uint32(len(q.buf)-1)]
}

// first returns the earliest deadline; the queue must not be empty.
func (q *queue) first() Time { return q.at(0).Deadline }

// came counts the requests since since was set, modulo 2³². It costs a request nothing.
func (q *queue) came() uint32 { return q.head + uint32(q.n) - q.since }

// full says that the ring must grow before the next request.
func (q *queue) full() bool { return int(q.n) == len(q.buf) }

// open makes room for a request and returns its place; Deadline is set, the rest is the caller's
// to write. The ring must not be full.
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
	if p < n/2 {
		q.head--
		q.since-- // arrivals counts places from head on
		q.forward(1, p)
	} else {
		q.back(p, n-p)
	}
	return p
}

// back moves the k requests from place i on to the next place each; that behind them is free.
func (q *queue) back(i, k int) {
	from, to := q.ends(i, k+1)
	if from <= to {
		copy(q.buf[from+1:to+1], q.buf[from:to])
		return
	}
	copy(q.buf[1:to+1], q.buf[:to])
	last := len(q.buf) - 1
	q.buf[0] = q.buf[last]
	copy(q.buf[from+1:], q.buf[from:last])
}

// forward moves the k requests from place i on to the place before each, which is free.
func (q *queue) forward(i, k int) {
	from, to := q.ends(i-1, k+1)
	if from <= to {
		copy(q.buf[from:to], q.buf[from+1:to+1])
		return
	}
	last := len(q.buf) - 1
	copy(q.buf[from:], q.buf[from+1:])
	q.buf[last] = q.buf[0]
	copy(q.buf[:to], q.buf[1:to+1])
}

// ends returns where in buf the first and the last of k places from i on lie.
func (q *queue) ends(i, k int) (from, to int) {
	mask := uint32(len(q.buf) - 1)
	return int((q.head + uint32(i)) & mask), int((q.head + uint32(i+k-1)) & mask)
}

const ringMin = 16

// grow doubles the ring with memory from rings, or the heap.
func (q *queue) grow(rings Rings) {
	n := max(ringMin, 2*len(q.buf))
	var buf []Request
	if rings != nil {
		buf = rings.Take(n)
	} else {
		buf = make([]Request, n)
	}
	// Those that wrap around stay at the place that head's low bits name.
	for i := range int(q.n) {
		buf[(q.head+uint32(i))&uint32(len(buf)-1)] = *q.at(i)
	}
	if rings != nil && len(q.buf) > 0 {
		rings.Give(q.buf)
	}
	q.buf = buf
}

// shrink gives a large ring's memory back; the queue must be empty.
func (q *queue) shrink(rings Rings) {
	if len(q.buf) <= ringKept {
		return
	}
	if rings != nil {
		rings.Give(q.buf)
	}
	q.buf = nil
}

// ringKept is how long a ring an idle model may keep: 64 KiB.
const ringKept = 1024

// pop removes the first k requests.
func (q *queue) pop(k int, ranked *int32) {
	for i := 0; *ranked > 0 && i < k; i++ {
		if q.at(i).Priority > 0 {
			*ranked--
		}
	}
	q.head += uint32(k)
	if q.n -= int32(k); q.n == 0 {
		q.since -= q.head // begin anew: what was used last is nearest
		q.head = 0
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
		q.forward(i+1, n-1-i)
		q.cut(1)
		return
	}
	q.back(0, i)
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

// front returns the first b requests as they lie in the ring, in one piece or two.
func (q *queue) front(b int) (one, two []Request) {
	from := int(q.head) & (len(q.buf) - 1)
	to := min(from+b, len(q.buf))
	return q.buf[from:to:to], q.buf[: b-(to-from) : b-(to-from)]
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
