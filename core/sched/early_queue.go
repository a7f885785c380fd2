package sched

// earlyQueue holds a model's early requests in order of joining, and finds each of them by its id. No call searches all of
// them, because the caller holds a lock and any session may send early requests.
type earlyQueue struct {
	model  int32       // its place in models
	heap   []earlyItem // a 4-ary min-heap; each request knows its place
	byID   map[earlyID]*earlyRequest
	came   uint64        // the number of requests that came
	unused *earlyRequest // memory for the next ones, linked by older
}

// earlyItem is an entry of the heap.
type earlyItem struct {
	from Time // when the request joins
	*earlyRequest
}

type earlyRequest struct {
	Request
	number uint64 // of its arrival
	place  int32  // in the heap

	// Several requests have one id if a session has more of them alive than its window holds.
	newer, older *earlyRequest
}

// earlyID is what a request is found by.
type earlyID struct {
	id     RequestID
	origin uint32
}

// earlyKept is the room that a model without early requests keeps for the next ones.
const earlyKept = 256

// before orders requests by the time of joining, and equal times by arrival.
func (a earlyItem) before(b earlyItem) bool {
	return a.from < b.from || a.from == b.from && a.number < b.number
}

// len returns the number of requests; a model that never had one has no queue.
func (e *earlyQueue) len() int {
	if e == nil {
		return 0
	}
	return len(e.heap)
}

// find returns the newest request with an id; nil: there is none.
func (e *earlyQueue) find(r RequestID, origin uint32) *earlyRequest {
	if e == nil {
		return nil
	}
	return e.byID[earlyID{r, origin}]
}

// victim returns the request that gives way to others: the least important one, and of these the one with the latest
// deadline. Of more than searchMax it looks at the end of the heap, where those are that join late. nil: there is none.
func (e *earlyQueue) victim() *earlyRequest {
	var worst *earlyRequest
	for i := max(0, e.len()-searchMax); i < e.len(); i++ {
		x := e.heap[i].earlyRequest
		if worst == nil || x.Priority < worst.Priority || x.Priority == worst.Priority && x.Deadline > worst.Deadline {
			worst = x
		}
	}
	return worst
}

// add adds a request that joins at from.
func (e *earlyQueue) add(r *Request, from Time) {
	x := e.unused
	if x == nil {
		x = &earlyRequest{}
	} else {
		e.unused = x.older
	}
	e.came++
	*x = earlyRequest{Request: *r, number: e.came}

	e.heap = append(e.heap, earlyItem{})
	e.moveUp(len(e.heap)-1, earlyItem{from, x})

	// The map is only read by id, so that its order decides nothing. Its hash is secret: no ids make a search long.
	if e.byID == nil {
		e.byID = map[earlyID]*earlyRequest{}
	}
	id := earlyID{r.ID, r.Origin}
	if x.older = e.byID[id]; x.older != nil {
		x.older.newer = x
	}
	e.byID[id] = x
}

// remove removes a request and returns it.
func (e *earlyQueue) remove(x *earlyRequest) Request {
	n := len(e.heap) - 1
	last := e.heap[n]
	e.heap[n] = earlyItem{}
	e.heap = e.heap[:n]

	// The last request fills the place.
	if i := int(x.place); i < n {
		if i > 0 && last.before(e.heap[(i-1)/4]) {
			e.moveUp(i, last)
		} else {
			e.moveDown(i, last)
		}
	}

	e.forgetID(x)
	r := x.Request
	x.older, e.unused = e.unused, x
	if n == 0 && cap(e.heap) > earlyKept {
		*e = earlyQueue{model: e.model} // gives back the memory of a queue that was long
	}
	return r
}

// forgetID makes find return the newest other request of the same id.
func (e *earlyQueue) forgetID(x *earlyRequest) {
	if x.older != nil {
		x.older.newer = x.newer
	}
	switch id := (earlyID{x.ID, x.Origin}); {
	case x.newer != nil:
		x.newer.older = x.older
	case x.older != nil:
		e.byID[id] = x.older
	default:
		delete(e.byID, id)
	}
}

// moveUp puts a request at place i of the heap or nearer to its top.
func (e *earlyQueue) moveUp(i int, x earlyItem) {
	for i > 0 && x.before(e.heap[(i-1)/4]) {
		e.put(i, e.heap[(i-1)/4])
		i = (i - 1) / 4
	}
	e.put(i, x)
}

// moveDown puts a request at place i of the heap or farther from its top.
func (e *earlyQueue) moveDown(i int, x earlyItem) {
	for {
		// Of the four below, the first to join takes the place.
		best := 4*i + 1
		for k := best + 1; k < min(4*i+5, len(e.heap)); k++ {
			if e.heap[k].before(e.heap[best]) {
				best = k
			}
		}
		if best >= len(e.heap) || !e.heap[best].before(x) {
			break
		}

		e.put(i, e.heap[best])
		i = best
	}
	e.put(i, x)
}

func (e *earlyQueue) put(i int, x earlyItem) {
	e.heap[i] = x
	x.place = int32(i)
}
