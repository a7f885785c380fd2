package sched

// A waiting candidate is checked each time its queue has doubled. Where requests come fast, these checks find nothing to
// do: a check offers the candidate only if it is expected to grow by at most a share until it is ripe. A family with one
// home skips such checks. A plain model does not, because at any check it may be found in a crowd.

// skipChecks returns the size at which a waiting family is checked next. Without skipping it is size, and each further one is
// twice as large. A check may be skipped if it would not offer the candidate, whose growth must be at most limit for that.
//
// The timer is set to when a batch of the returned size is ripe. Until then a batch of n grows for at least the
// difference of the two leads, by no less than the slowest pace.
func (m *model) skipChecks(now Time, size int, limit float64) int {
	size = m.resumeChecks(now, size)
	first, slowest := size, m.pace.slowest()
	for size < int(m.max) {
		next := min(2*size+2, int(m.max))
		grows := slowest * float64(m.lead[next]-m.lead[size+1])
		if grows <= limit*float64(size) || m.grownAt(next) <= now {
			break
		}
		size = next
	}

	m.forgetSkipped()
	if size > first {
		m.family.skipped = first
	}
	return size
}

// resumeChecks returns the size of the next check that was skipped if the timer comes before it. Then few requests came, and
// the checks go on as if none had been skipped. Otherwise it returns size.
func (m *model) resumeChecks(now Time, size int) int {
	next := m.family.skipped
	if next == 0 {
		return size
	}
	for next <= m.q.len() {
		next = 2*next + 2
	}
	if next < int(m.max) && m.grownAt(next) > now {
		return next
	}
	return size
}

// forgetSkipped forgets which checks were skipped: the next ones depend on the present queue.
func (m *model) forgetSkipped() {
	if m.family != nil {
		m.family.skipped = 0
	}
}

// grownAt returns when waiting stops being free for a batch that grows to a size.
func (m *model) grownAt(size int) Time { return m.q.first() - Time(m.lead[size]+m.margin) }
