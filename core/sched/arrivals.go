package sched

// Arrivals are requests that a driver admits at one moment. They have the part of Admit that most requests need, in pieces
// that the compiler inlines into the driver's loop: calls would cost as many steps as the part itself. Admit takes the other
// requests.
type Arrivals struct {
	part *Partition
	now  Time
}

// Arrive begins to admit requests at now. The result is valid until a model is added.
func (p *Partition) Arrive(now Time) Arrivals { return Arrivals{p, p.clock(now)} }

// FoundModel is a model, or none, by which Arrivals need not look for it again.
type FoundModel struct{ m *model }

// Find returns the model with an id; none if it is unknown.
func (a *Arrivals) Find(id ModelID) FoundModel {
	m, _ := a.part.find(id)
	return FoundModel{m}
}

// JoinsLast reports whether a request without priority joins the model's queue behind all others and changes nothing else.
// If not, only Admit may admit it.
func (a *Arrivals) JoinsLast(x FoundModel, deadline Time) bool {
	return x.m != nil && x.m.joinsLast(a.now, deadline)
}

// NoteArrival records the arrival of a request for which JoinsLast is true. Append must follow.
func (a *Arrivals) NoteArrival(x FoundModel) {
	x.m.arrive(a.now)
	a.part.stats.Enqueued++
}

// Append adds the request and returns its place, where the driver writes the same fields as after Admit.
func (x FoundModel) Append(id ModelID, deadline Time) *Request {
	return x.m.appendRequest(id, deadline)
}

func (m *model) joinsLast(now, deadline Time) bool {
	q := &m.q
	return q.n < q.quiet && deadline >= q.last && deadline.Sub(now) >= m.soonest && !q.full()
}

// appendRequest is given the model's id, because the line of memory that holds it may not be in the cache.
func (m *model) appendRequest(id ModelID, deadline Time) *Request {
	r := m.q.at(int(m.q.n))
	m.q.n++
	m.q.last = deadline
	r.Deadline, r.Model, r.Priority, r.Avoid = deadline, id, 0, 0
	return r
}
