package sched

// nearModels is how many models' queues stay in a core's cache.
const nearModels = 2048

// Far says that a request's trips to memory are worth overlapping: see Ahead.
func (p *Partition) Far() bool { return len(p.models) >= p.near }

// Ahead reads what Admit will need of a model: its first two lines and the one where its next request
// will stand. A driver that takes in a burst when models are Far calls it for all of them first: so the
// trips to memory overlap. The number means nothing.
func (p *Partition) Ahead(id ModelID) uint32 {
	if m, _ := p.find(id); m != nil && !m.q.full() {
		return m.gaps[0] + m.q.at(int(m.q.n)).Origin
	}
	return 0
}
