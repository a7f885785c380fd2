package sched

// growAlone lets a service wait without a place while no place could make it start: wherever its batch is answered it gains by
// growing, and there is time for that in whatever way it is answered. It returns whether that is so.
func (p *Partition) growAlone(now Time, m *model, at int32) bool {
	f := m.family
	if m.q.len() > f.small || m.load < p.o.Prompt {
		return false
	}
	until := m.q.first() - Time(f.longest+m.margin)
	if until <= now {
		return false
	}

	// What was asked of Rankers before, for requests that have gone since, is taken back.
	if f.asked {
		f.asked = false
		for k := range f.homes {
			f.homes[k].starts = 0
			p.withdrawFrom(m, &f.homes[k])
		}
	}
	m.state, m.timer = waiting, until
	p.calm(m, int32(f.small))
	p.timers.arm(at, until)
	return true
}

// growUnseen lets requests join unlooked at while those queued wait for more, or for a GPU, until they have grown by a part.
func (p *Partition) growUnseen(now Time, m *model, all bool) {
	f, n := m.family, m.q.len()
	if n < growthShare || f.lookAt <= now {
		return
	}

	// Where all services are placed together, what another batch would do to the others is looked at.
	whole := f.placed >= n && f.pieces > 0
	if all && (!whole || f.pieces != 1) {
		return
	}

	// The timer is set for the batch that has grown so far.
	grown := n + n/growthShare
	if whole {
		ahead := m.q.first() - Time(f.way.lead[min(grown+1, int(f.way.max))])
		if ahead <= now {
			return
		}
		f.lookAt = min(f.lookAt, ahead)
	}
	p.calm(m, int32(grown))
}
