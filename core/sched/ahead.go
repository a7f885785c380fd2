package sched

// Ahead reads what Admit will need of a model, its first two lines, and Place the line where its next
// request will stand. A driver that takes in a burst for many models calls the one for all of them
// and then the other: so the trips to memory overlap. The numbers mean nothing.
func (p *Partition) Ahead(id ModelID) uint32 {
	if m, _ := p.find(id); m != nil {
		return m.q.head + m.gaps[0]
	}
	return 0
}

// Place: see Ahead.
func (p *Partition) Place(id ModelID) uint32 {
	if m, _ := p.find(id); m != nil && len(m.q.buf) > 0 {
		return m.q.at(int(m.q.n)).Origin
	}
	return 0
}
