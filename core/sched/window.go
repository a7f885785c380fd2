package sched

import "sort"

// pick chooses the next batch: b requests after dropping the first skip ones. Dropping from the
// head alone (Symphony §4.3, Clipper) serves a stale head with a small batch, which leaves the
// next head staler still. So when the head allows only a small batch and no other GPU is idle, the
// window slides to where a batch near the target fits.
func (p *Partition) pick(now Time, m *model, g Grant) (skip, b int) {
	b = p.fit(now, m, 0, g.FreeAt)
	t := m.rate.target
	if b >= m.q.n || b*windowDen >= t*windowLow || g.Idle > 0 {
		return 0, b
	}
	for h := 1; h < m.q.n; h++ {
		n := p.fit(now, m, h, g.FreeAt)
		if n*windowDen >= t*windowHigh {
			return h, n
		}
		if n == m.q.n-h {
			break
		}
	}
	return 0, b
}

// The window slides when the batch is below windowLow/windowDen of the target, and then to one of
// windowHigh/windowDen.
const (
	windowDen  = 100
	windowLow  = 70
	windowHigh = 80
)

// fit returns the largest batch starting with request h that meets h's deadline.
func (p *Partition) fit(now Time, m *model, h int, freeAt Time) int {
	n := min(m.q.n-h, m.max)
	d := m.q.at(h).deadline
	soon, gpu := d.Sub(now), d.Sub(freeAt)
	return sort.Search(n, func(i int) bool { return m.lead[i+1] > soon || m.exec[i+1] > gpu })
}
