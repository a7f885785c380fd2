package sched

// waitUnplaced lets a service wait without a place as long as it would start in none: in every home and variant its batch
// gains from growing, and there is time for that. It returns whether the service waits.
func (p *Partition) waitUnplaced(now Time, m *model, at int32) bool {
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

// allowUnchecked lets requests join a placed queue without a check until it has grown by the share 1/growthShare. Until then
// the service looks for no other place.
func (p *Partition) allowUnchecked(now Time, m *model, few bool) {
	f, n := m.family, m.q.len()
	if n < growthShare || f.lookAt <= now {
		return
	}

	// Few services are placed together: one more batch of this service could take a place from another one.
	whole := f.placed >= n && f.pieces > 0
	if few && (!whole || f.pieces != 1) {
		return
	}

	// Set the timer for the grown batch.
	grown := n + n/growthShare
	if whole {
		grownAt := m.q.first() - Time(f.way.lead[min(grown+1, int(f.way.max))])
		if grownAt <= now {
			return
		}
		f.lookAt = min(f.lookAt, grownAt)
	}
	p.setQuiet(m, int32(grown))
}
