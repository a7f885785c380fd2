package sched

// growAlone lets a service wait without a place while no place could make it start: in every home and variant its
// batch gains from growing, and there is time for that. It returns whether that is so.
func (p *Partition) growAlone(now Time, m *model, at int32) bool {
	f := m.family
	if m.q.len() > f.small || m.load < p.o.Prompt {
		return false
	}
	until := m.q.first() - Time(f.longest+m.margin)
	if until <= now {
		return false
	}

	// Withdraw candidates that were offered for requests that are gone.
	if f.asked {
		f.asked = false
		for k := range f.homes {
			f.homes[k].starts = 0
			p.withdrawFrom(m, &f.homes[k])
		}
	}
	m.state, m.timer = waiting, until
	p.setQuiet(m, int32(f.small))
	p.timers.arm(at, until)
	return true
}

// growUnseen lets requests join unchecked while the queued ones wait for more, or for a GPU, until the queue has
// grown by a part.
func (p *Partition) growUnseen(now Time, m *model, few bool) {
	f, n := m.family, m.q.len()
	if n < growthShare || f.lookAt <= now {
		return
	}

	// If few services are placed together, check the effect of another batch on the others.
	whole := f.placed >= n && f.pieces > 0
	if few && (!whole || f.pieces != 1) {
		return
	}

	// Set the timer for the grown batch.
	grown := n + n/growthShare
	if whole {
		ahead := m.q.first() - Time(f.way.lead[min(grown+1, int(f.way.max))])
		if ahead <= now {
			return
		}
		f.lookAt = min(f.lookAt, ahead)
	}
	p.setQuiet(m, int32(grown))
}
