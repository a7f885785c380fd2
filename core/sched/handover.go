package sched

// Learned is a Partition's measurements of a model's requests, for another Partition that takes over.
type Learned struct {
	Rate   float64  // estimated arrivals/s, as of the latest request or check
	Margin Duration // how long before its frontrun a candidate is ripe
}

// Learned returns the measurements of a model; the zero value for an unknown one.
func (p *Partition) Learned(id ModelID) Learned {
	if m, _ := p.find(id); m != nil {
		return Learned{Rate: m.rate.perNS * 1e9, Margin: m.margin}
	}
	return Learned{}
}

// Learn makes a model continue from another Partition's measurements. It ignores invalid measurements, and leaves a
// model unchanged that has its own requests, has a given rate or is unknown.
func (p *Partition) Learn(now Time, id ModelID, l Learned) {
	now = p.clock(now)
	m, at := p.find(id)
	if m == nil || m.rate.fixed || m.q.len() > 0 || !(l.Rate >= 0 && l.Rate <= RateLimit) || l.Margin < 0 || l.Margin > m.slo {
		return
	}

	// The estimate counts as old as its whole time constant: it moves slowly from here.
	m.rate.perNS, m.rate.since, m.rate.at = l.Rate/1e9, now.Add(-rateSpan), now
	m.q.since = m.q.head
	m.rate.derive(m)
	p.countMember(m, at)
	m.margin = l.Margin
	m.adjustMargin(0, 0) // as far as this profile allows
}
