package sched

import "math/bits"

// ranks counts a queue's requests by priority, so that no queue is searched for the lowest one.
type ranks struct {
	n      int32 // with a priority above 0
	swept  int32 // requests that a sweep has looked at, if one is under way; below 0 where those have gone
	levels *levels
}

// levels are made when the first request with a priority comes.
type levels struct {
	count  [256]int32
	used   [4]uint64 // which of them are not 0
	looked uint64    // requests that searches by priority have looked at
}

// add counts a request that joins the queue.
func (r *ranks) add(pr Priority) {
	if pr == 0 {
		return
	}

	// Priorities are rare: a model without them carries no table.
	if r.levels == nil {
		r.levels = &levels{}
	}
	r.n++
	r.levels.count[pr]++
	r.levels.used[pr>>6] |= 1 << (pr & 63)
}

// sub counts a request that leaves it.
func (r *ranks) sub(pr Priority) {
	if pr == 0 {
		return
	}

	r.n--
	if r.levels.count[pr]--; r.levels.count[pr] == 0 {
		r.levels.used[pr>>6] &^= 1 << (pr & 63)
	}
}

// lowest returns the lowest priority among the n requests of the queue.
func (r *ranks) lowest(n int) Priority {
	// Some request has no priority, and none is below that.
	if int(r.n) < n {
		return 0
	}
	for i, w := range r.levels.used {
		if w != 0 {
			return Priority(i<<6 + bits.TrailingZeros64(w))
		}
	}
	return 0
}

// uniform says whether all n requests of the queue have one priority.
func (r *ranks) uniform(n int) bool {
	if r.n == 0 {
		return true
	}
	return int(r.n) == n && int(r.levels.count[r.lowest(n)]) == n
}

// passable extends a run of requests from the head, whose first from ones are known to be of the queue's lowest
// priority, up to place to; it returns how long the run is. A window may slide past such requests and drop them:
// no one of a lower priority is queued. Where priorities differ it slides past searchMax requests at most.
func (q *queue) passable(from, to int, r *ranks) int {
	if r.uniform(int(q.n)) {
		return to
	}
	lowest := r.lowest(int(q.n))
	for to = min(to, searchMax); from < to && q.at(from).Priority == lowest; from++ {
		r.levels.looked++
	}
	return from
}

// victim returns the request that gives way to one of priority pr and a deadline when the queue is full, -1 when
// none does: of those that matter less the one of the lowest priority, and within one that with the latest
// deadline, which would be served last. It looks at the searchMax latest deadlines.
func (q *queue) victim(pr Priority, deadline Time, r *ranks) int {
	lowest := r.lowest(int(q.n))
	if pr < lowest || pr == lowest && deadline >= q.last {
		return -1
	}

	best := -1
	for i := int(q.n) - 1; i >= max(0, int(q.n)-searchMax); i-- {
		x := q.at(i)
		if r.levels != nil {
			r.levels.looked++
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

// choose appends b requests to out and removes them: the head, which sets the batch's deadline, and
// then the higher priorities, within one the earlier deadlines. There must be more than b. In a long queue it
// chooses among the chooseMax earliest deadlines, since it goes through them twice.
func (q *queue) choose(b int, out []Request, r *ranks) []Request {
	among := min(int(q.n), max(b, chooseMax))
	least, room := q.cutoff(b-1, among, r)

	// Those that stay move together at the front, as far as the last one chosen,
	kept := 0
	for i := 0; len(out) < b; i++ {
		x := q.at(i)
		r.levels.looked++
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

	// and then to where the rest of the queue begins.
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

// chooseMax is among how many requests a batch is chosen by priority.
const chooseMax = searchMax / 2

// cutoff returns which priority is the least of the most important n of the requests behind the head, up to place
// among, and how many of that one are chosen; it needs a request with a priority.
func (q *queue) cutoff(n, among int, r *ranks) (least Priority, room int) {
	count := &r.levels.count

	// The counts kept are of the whole queue; a part of it is counted here.
	if among < int(q.n) {
		count = new([256]int32)
		for i := range among {
			count[q.at(i).Priority]++
		}
		r.levels.looked += uint64(among)
	}

	head := q.at(0).Priority
	least, room = 255, n
	for ; least > 0; least-- {
		here := int(count[least])
		if least == head {
			here-- // it is taken anyway
		}
		if here > room {
			break
		}
		room -= here
	}
	return least, room
}
