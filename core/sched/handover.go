package sched

// Learned is what a Partition has measured of a model's requests, for another one that takes over.
type Learned struct {
	Rate   float64  // estimated arrivals/s, as of the latest request or look
	Margin Duration // how long before its frontrun a candidate is ripe
}

// Learned returns what was measured of a model; the zero value for an unknown one.
func (p *Partition) Learned(id ModelID) Learned {
	if m, _ := p.find(id); m != nil {
		return Learned{Rate: m.rate.perNS * 1e9, Margin: m.margin}
	}
	return Learned{}
}

// Learn has a model go on from what another Partition has measured. A model that has requests of its own, whose
// rate is given, or that is unknown is left as it is, and so is one of which nonsense is told.
func (p *Partition) Learn(now Time, id ModelID, l Learned) {
	now = p.clock(now)
	m, at := p.find(id)
	if m == nil || m.rate.fixed || m.q.len() > 0 || !(l.Rate >= 0 && l.Rate <= RateLimit) || l.Margin < 0 || l.Margin > m.slo {
		return
	}

	// The estimate is as old as one that has seen its whole time constant: it moves slowly from here.
	m.rate.perNS, m.rate.since, m.rate.at = l.Rate/1e9, now.Add(-rateSpan), now
	m.q.since = m.q.head
	m.rate.derive(m)
	p.weigh(m, at)
	m.margin = l.Margin
	m.hurry(0, 0) // as far as this profile allows
}
