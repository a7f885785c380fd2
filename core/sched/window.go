package sched

import "sort"

// pickBatch chooses the next batch: b requests after dropping the first skip ones. Dropping only at the head (Symphony
// §4.3, Clipper) serves a stale head with a small batch, which leaves the next head staler still. So when the batch
// that the head allows is less efficient than the load requires, the window slides to the first batch that is
// efficient enough. If there is none, as in an overload that comes in bursts, it slides to the largest if that pays.
//
// x is the execution, load the load to keep up with; requests before place from are ignored.
func (p *Partition) pickBatch(now Time, m *model, x *execution, from int, freeAt Time, load float64) (first, b int) {
	b = p.largestBatch(now, m, x, from, freeAt)
	if b >= m.q.len()-from || x.enough(b, load) {
		return from, b
	}

	best, most, passed := from, b, from
	for h, n := from, b; ; {
		// The heads before the next one that allows a batch of n+1 allow n at most.
		h = p.firstAllowing(now, m, x, h+1, n+1, freeAt)
		if h >= m.q.len()-n {
			break // the batch has all remaining requests
		}
		if passed = m.q.passable(passed, h, &m.priorities); passed < h {
			break
		}
		if n = p.largestBatch(now, m, x, h, freeAt); x.enough(n, load) {
			return h, n
		}
		if n > most {
			best, most = h, n
		}
		if n == m.q.len()-h {
			break
		}
	}
	if load >= 1 && x.pays(b, most) {
		return best, most
	}
	return from, b
}

// pays reports whether a batch of c is so much more efficient than one of b that dropping the heads before it is
// worthwhile: otherwise each head would be served as late as the one before, and the overload would continue at the
// lower efficiency.
func (x *execution) pays(b, c int) bool {
	return b == 0 || float64(c)*float64(x.exec[b]) >= windowPays*float64(b)*float64(x.exec[c])
}

const windowPays = 1.4

// enough reports whether batches of b keep up with a load u: if every model runs at the share u of its best
// efficiency T/ℓ(T), the GPUs just suffice for the demand u = Σ λ·ℓ(T)/T / N. Slightly less is required, because the
// estimates of λ vary.
func (x *execution) enough(b int, load float64) bool {
	t := x.target
	if b >= t {
		return true
	}
	return float64(b)*float64(x.exec[t]) >= min(1, 0.98*load)*float64(t)*float64(x.exec[b])
}

// largestBatch returns the largest batch starting with request h that meets h's deadline.
func (p *Partition) largestBatch(now Time, m *model, x *execution, h int, freeAt Time) int {
	n := min(m.q.len()-h, int(x.max))
	d := m.q.at(h).Deadline
	soon, gpu := d.Sub(now), d.Sub(freeAt)
	if n == 0 || x.lead[n] <= soon && x.exec[n] <= gpu {
		return n // most often all of them
	}
	return sort.Search(n, func(i int) bool { return x.lead[i+1] > soon || x.exec[i+1] > gpu })
}

// firstAllowing returns the first request from place h on whose deadline a batch of b meets.
func (p *Partition) firstAllowing(now Time, m *model, x *execution, h, b int, freeAt Time) int {
	return h + sort.Search(m.q.len()-h, func(i int) bool {
		d := m.q.at(h + i).Deadline
		return x.lead[b] <= d.Sub(now) && x.exec[b] <= d.Sub(freeAt)
	})
}
