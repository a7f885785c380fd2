package sched

import "math/bits"

// priorities counts a queue's requests by priority, so that finding the lowest one needs no search.
type priorities struct {
	n     int32 // with a priority above 0
	swept int32 // requests that the current sweep has checked, if any; below 0 if they have left the queue
	table *priorityTable
}

// priorityTable is created with the first request that has a priority.
type priorityTable struct {
	count  [256]int32
	used   [4]uint64 // which counts are not 0
	looked uint64    // requests read by searches by priority
}

// add counts a request that joins the queue.
func (r *priorities) add(pr Priority) {
	if pr == 0 {
		return
	}

	// Priorities are rare, so most models need no table.
	if r.table == nil {
		r.table = &priorityTable{}
	}
	r.n++
	r.table.count[pr]++
	r.table.used[pr>>6] |= 1 << (pr & 63)
}

// sub uncounts a request that leaves the queue.
func (r *priorities) sub(pr Priority) {
	if pr == 0 {
		return
	}

	r.n--
	if r.table.count[pr]--; r.table.count[pr] == 0 {
		r.table.used[pr>>6] &^= 1 << (pr & 63)
	}
}

// lowest returns the lowest priority among the n requests of the queue.
func (r *priorities) lowest(n int) Priority {
	// A request without a priority has the lowest possible one.
	if int(r.n) < n {
		return 0
	}
	for i, w := range r.table.used {
		if w != 0 {
			return Priority(i<<6 + bits.TrailingZeros64(w))
		}
	}
	return 0
}

// uniform reports whether all n requests of the queue have the same priority.
func (r *priorities) uniform(n int) bool {
	if r.n == 0 {
		return true
	}
	return int(r.n) == n && int(r.table.count[r.lowest(n)]) == n
}

// passable returns how many requests at the head of the queue, at most to, have its lowest priority; the first from of
// them are already known to. The window may slide past these requests and drop them, since no less important ones are
// queued. If priorities differ, it slides past searchMax requests at most.
func (q *queue) passable(from, to int, r *priorities) int {
	if r.uniform(int(q.n)) {
		return to
	}
	lowest := r.lowest(int(q.n))
	for to = min(to, searchMax); from < to && q.at(from).Priority == lowest; from++ {
		r.table.looked++
	}
	return from
}

// victim returns the place of the request that a full queue drops in favor of one with this priority and deadline; -1
// if there is none. Among less important requests it is the one of the lowest priority, and among equals the one with
// the latest deadline, which would be served last. victim checks the searchMax latest deadlines.
func (q *queue) victim(pr Priority, deadline Time, r *priorities) int {
	lowest := r.lowest(int(q.n))
	if pr < lowest || pr == lowest && deadline >= q.last {
		return -1
	}

	best := -1
	for i := int(q.n) - 1; i >= max(0, int(q.n)-searchMax); i-- {
		x := q.at(i)
		if r.table != nil {
			r.table.looked++
		}
		if x.Priority > pr || x.Priority == pr && x.Deadline <= deadline {
			continue
		}
		if best < 0 || x.Priority < q.at(best).Priority {
			best = i
		}
		if q.at(best).Priority == lowest {
			break
		}
	}
	return best
}

// takeByPriority appends b requests to out and removes them from the queue, which must have more than b. It takes the
// head, which sets the batch's deadline, and then the highest priorities, the earliest deadlines first among equals. In
// a long queue it chooses among the chooseMax earliest deadlines, because it reads them twice.
func (q *queue) takeByPriority(b int, out []Request, r *priorities) []Request {
	among := min(int(q.n), max(b, chooseMax))
	least, room := q.cutoff(b-1, among, r)

	// Close the gaps between the requests that stay, up to the last one taken.
	kept := 0
	for i := 0; len(out) < b; i++ {
		x := q.at(i)
		r.table.looked++
		take := i == 0 || x.Priority > least
		if !take && x.Priority == least && room > 0 {
			room--
			take = true
		}
		if take {
			out = append(out, *x)
			continue
		}
		*q.at(kept) = *x
		kept++
	}

	// Then move them up to the rest of the queue.
	q.shift(0, kept, b)
	q.head += uint32(b)
	q.n -= int32(b)
	r.swept -= int32(b)
	q.end()

	for i := range out {
		r.sub(out[i].Priority)
	}
	return out
}

// chooseMax is the largest number of requests among which a batch is chosen by priority.
const chooseMax = searchMax / 2

// cutoff finds the n most important requests among the first ones of the queue, without its head. It returns the lowest
// priority of the n, and how many requests of that priority belong to them. Some request must have a priority.
func (q *queue) cutoff(n, among int, r *priorities) (least Priority, room int) {
	count := &r.table.count

	// The table counts the whole queue, so a part of it is counted here.
	if among < int(q.n) {
		count = new([256]int32)
		for i := range among {
			count[q.at(i).Priority]++
		}
		r.table.looked += uint64(among)
	}

	head := q.at(0).Priority
	least, room = 255, n
	for ; least > 0; least-- {
		here := int(count[least])
		if least == head {
			here-- // the head is taken anyway
		}
		if here > room {
			break
		}
		room -= here
	}
	return least, room
}
