package sim

// absenceLeast and absenceMost are for how long a backend is away that leaves for long: a plan waits 3 s for its GPUs (plan.IsGone).
const (
	absenceLeast Duration = 3.5e9
	absenceMost  Duration = 6e9
)

// leaveForLong has a backend die, or lose all its links, and return when a plan has gone on without its GPUs.
func (b *back) leaveForLong() {
	c := b.c
	if b.dead || c.calm {
		return
	}

	away := c.within(absenceLeast, absenceMost)
	c.report.Moves.Absences++
	c.absentTill = c.now.Add(away)
	c.note("backend leaves for long", int64(b.index), int64(away), 0)

	if c.rng.IntN(2) == 0 {
		b.die(away)
		return
	}

	// It lives and goes on with what it has, a load for one.
	for i, s := range b.sessions {
		b.barred[i] = c.now.Add(away)
		if s != nil && s.up {
			s.breakLink(c.within(0, 200e6), c.within(0, 300e6))
		}
	}
}
