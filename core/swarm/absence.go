package swarm

// absenceLeast and absenceMost bound the long absence of a backend. A plan waits 3 s for an absent backend's GPUs
// (plan.IsGone).
const (
	absenceLeast Duration = 3.5e9
	absenceMost  Duration = 6e9
)

// leaveForLong makes a backend die or lose all its links, and return after a plan has gone on without its GPUs.
func (b *back) leaveForLong() {
	c := b.c
	if b.dead || c.calm {
		return
	}

	away := c.within(absenceLeast, absenceMost)
	c.report.Moves.Absences++
	c.absentTill = c.now.Add(away)
	c.addMark("backend leaves for long", int64(b.index), int64(away), 0)

	if c.rng.IntN(2) == 0 {
		b.die(away)
		return
	}

	// The backend lives and continues its work, such as a model load.
	for i, l := range b.links {
		b.barredUntil[i] = c.now.Add(away)
		if l != nil && l.up {
			l.breakLink(c.within(0, 200e6), c.within(0, 300e6))
		}
	}
}
