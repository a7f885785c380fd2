package sched

import "sort"

// pick chooses the next batch: b requests after dropping the first skip ones. Dropping from the
// head alone (Symphony §4.3, Clipper) serves a stale head with a small batch, which leaves the
// next head staler still. So when the batch that the head allows is less efficient than the load
// requires, the window slides to the first one that is not. Where none is, as in an overload that comes in
// bursts, it slides to the largest if that pays.
func (p *Partition) pick(now Time, m *model, g Grant) (skip, b int) {
	b = p.fit(now, m, 0, g.FreeAt)
	if b >= m.q.len() || m.enough(b, g.Load) {
		return 0, b
	}
	best, most := 0, b
	for h := 1; h < m.q.len() && m.q.mayPass(h-1, &m.ranked); h++ {
		n := p.fit(now, m, h, g.FreeAt)
		if m.enough(n, g.Load) {
			return h, n
		}
		if n > most {
			best, most = h, n
		}
		if n == m.q.len()-h {
			break
		}
	}
	if g.Load >= 1 && m.pays(b, most) {
		return best, most
	}
	return 0, b
}

// pays says whether a batch of c is so much more efficient than one of b that the heads before it are worth
// dropping: else each head would be served as late as the one before, and the overload at the lower pace.
func (m *model) pays(b, c int) bool {
	return b == 0 || float64(c)*float64(m.exec[b]) >= windowPays*float64(b)*float64(m.exec[c])
}

const windowPays = 1.4

// enough says whether batches of b keep up with a load u: if every model runs at the share u of
// its best efficiency T/ℓ(T), the GPUs just suffice for the demand u = Σ λ·ℓ(T)/T / N. A little
// less is asked for, because the estimates of λ scatter.
func (m *model) enough(b int, load float64) bool {
	t := m.rate.target
	if b >= t {
		return true
	}
	return float64(b)*float64(m.exec[t]) >= min(1, 0.98*load)*float64(t)*float64(m.exec[b])
}

// fit returns the largest batch starting with request h that meets h's deadline.
func (p *Partition) fit(now Time, m *model, h int, freeAt Time) int {
	n := min(m.q.len()-h, int(m.max))
	d := m.q.at(h).Deadline
	soon, gpu := d.Sub(now), d.Sub(freeAt)
	return sort.Search(n, func(i int) bool { return m.lead[i+1] > soon || m.exec[i+1] > gpu })
}
