package sched

import "sort"

// entry is a queued request.
type entry struct {
	deadline Time
	id       RequestID
	priority Priority
}

// queue holds one model's requests in order of deadline, equal deadlines in order of arrival. It
// is a ring that grows by doubling. Requests with the model's own SLO arrive in order and cost one
// store; one with a shorter budget moves those behind it.
type queue struct {
	buf    []entry // length is a power of two
	head   uint32
	ranked int32 // requests with a priority above 0
	n      int
	first  Time // deadline of the first request; the ring need not be read for it
	last   Time // deadline of the last
}

func (q *queue) at(i int) *entry {
	return &q.buf[(q.head+uint32(i))&uint32(len(q.buf)-1)]
}

// insert returns the place where e went.
func (q *queue) insert(e entry) int {
	if q.n == len(q.buf) {
		q.grow()
	}
	if e.priority > 0 {
		q.ranked++
	}
	i := q.n
	q.n++
	if i > 0 && q.last > e.deadline {
		return q.squeeze(i, e)
	}
	if i == 0 {
		q.first = e.deadline
	}
	q.last = e.deadline
	*q.at(i) = e
	return i
}

// squeeze puts e before the requests with later deadlines; place i at the end is free.
func (q *queue) squeeze(i int, e entry) int {
	p := sort.Search(i, func(k int) bool { return q.at(k).deadline > e.deadline })
	for ; i > p; i-- {
		*q.at(i) = *q.at(i - 1)
	}
	*q.at(i) = e
	q.first = q.at(0).deadline
	return i
}

func (q *queue) grow() {
	buf := make([]entry, max(16, 2*len(q.buf)))
	for i := 0; i < q.n; i++ {
		buf[i] = *q.at(i)
	}
	q.buf, q.head = buf, 0
}

// pop removes the first k requests.
func (q *queue) pop(k int) {
	if q.ranked > 0 {
		for i := 0; i < k; i++ {
			if q.at(i).priority > 0 {
				q.ranked--
			}
		}
	}
	q.head += uint32(k)
	q.n -= k
	q.ends()
}

// ends notes the first and the last deadline anew.
func (q *queue) ends() {
	if q.n > 0 {
		q.first, q.last = q.at(0).deadline, q.at(q.n-1).deadline
	}
}

// remove takes out request i.
func (q *queue) remove(i int) {
	if q.at(i).priority > 0 {
		q.ranked--
	}
	for ; i < q.n-1; i++ {
		*q.at(i) = *q.at(i + 1)
	}
	q.n--
	q.ends()
}

// find returns the place of the request, -1 when it is not queued.
func (q *queue) find(id RequestID, deadline Time) int {
	i := sort.Search(q.n, func(k int) bool { return q.at(k).deadline >= deadline })
	for ; i < q.n && q.at(i).deadline == deadline; i++ {
		if q.at(i).id == id {
			return i
		}
	}
	return -1
}

// take appends b requests to ids and removes them: the head, which sets the batch's deadline, and
// then the higher priorities, within one the earlier deadlines.
func (q *queue) take(b int, ids []RequestID) []RequestID {
	if q.ranked == 0 || b == q.n {
		for i := 0; i < b; i++ {
			ids = append(ids, q.at(i).id)
		}
		q.pop(b)
		return ids
	}
	var count [256]int32
	for i := 1; i < q.n; i++ {
		count[q.at(i).priority]++
	}
	least, room := 255, int32(b-1) // of priority least room requests still fit, above all do
	for ; least > 0 && count[least] <= room; least-- {
		room -= count[least]
	}
	kept := 0
	for i := 0; i < q.n; i++ {
		e := *q.at(i)
		pr := int(e.priority)
		if pr == least && i > 0 {
			room--
		}
		if i == 0 || pr > least || pr == least && room >= 0 {
			ids = append(ids, e.id)
			if pr > 0 {
				q.ranked--
			}
			continue
		}
		*q.at(kept) = e
		kept++
	}
	q.n = kept
	q.ends()
	return ids
}

// mayPass says whether a window may slide past request i and drop it: not while one of a lower
// priority is queued.
func (q *queue) mayPass(i int) bool {
	return q.ranked == 0 || q.at(i).priority <= q.at(q.lowest()).priority
}

// lowest returns the place of the request to give up first: of the lowest priority the one with
// the latest deadline.
func (q *queue) lowest() int {
	best := q.n - 1
	for i := best; i >= 0 && q.at(best).priority > 0; i-- {
		if q.at(i).priority < q.at(best).priority {
			best = i
		}
	}
	return best
}
