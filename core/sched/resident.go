package sched

// resident is a variant in a home.
type resident struct {
	// A look at a way reads these two and the first fields of execution, in one cache line.
	accuracy float64
	below    float64 // the greatest accuracy of those before it in its home, which take less time
	execution
	cheapestUpTo []cheapest // of its profile
	cost         float64    // GPU seconds per request in batches of the target size
	sized        int32      // the largest batch that was possible at the latest plan; 0: none was made
	growsTo      int32      // the largest batch that is waited for
}

// planBatch finds the best batch that gathers and runs within the planned part of a budget and its cost, and up to which
// size a batch waits for more requests.
func (r *resident) planBatch(perNS float64, budget Duration) {
	r.sized = r.gathers(r.sized, perNS, planBudget*float64(budget))
	r.cost = r.cheapestUpTo[r.sized].cost
	r.growsTo = r.gathers(r.growsTo, perNS, growBudget*float64(budget))
}

// small returns the size up to which batches gain from growing; see efficient.
func (r *resident) small() int { return int(min(r.cheapestUpTo[r.growsTo].small, r.max-1)) }

// gathers returns the largest batch that gathers at a rate and runs within some nanoseconds. The search starts at a guess.
func (r *resident) gathers(guess int32, perNS, within float64) int32 {
	return int32(largestFit(int(guess), int(r.max), func(b int) bool {
		return float64(r.lead[b])+float64(b-1)/perNS <= within
	}))
}

// trimmed returns b, or the size of the smaller batch with the least GPU time per request if that is less: on many GPUs five
// requests take much longer than four. The others are left to the next GPU.
func (r *resident) trimmed(b int) int {
	if b == 0 || isEfficient(r.exec[b], r.cheapestUpTo[b].cost, b) {
		return b
	}
	return int(r.cheapestUpTo[b].size)
}

// efficient reports whether a batch of b costs hardly more per request than the best one that is waited for.
func (r *resident) efficient(b int) bool {
	return isEfficient(r.exec[b], r.cheapestUpTo[r.growsTo].cost, b)
}

func isEfficient(exec Duration, cost float64, b int) bool {
	return float64(exec) <= gainLeast*1e9*cost*float64(b)
}

// ripeIn is ripeAt for another execution than the intended one.
func (m *model) ripeIn(now Time, r *resident) Time {
	if m.q.len() >= int(r.max) {
		return now
	}

	return m.q.first() - Time(r.lead[m.q.len()+1]+m.margin)
}

// bestResident returns the resident whose largest batch from place first on has the greatest value, answers minus GPU
// time, and the size of that batch. Requests that it leaves behind count little less if this GPU could still serve
// them afterwards: a lighter variant is better only for requests that would otherwise be lost. Ties go to the quicker
// one.
func (p *Partition) bestResident(now Time, m *model, h *home, first int, freeAt Time) (best *resident, size int) {
	price, most := p.priceOf(h.sub), 0.0
	for i := range h.residents {
		r := &h.residents[i]
		b := p.largestBatch(now, m, &r.execution, first, freeAt)
		if b == 0 {
			continue
		}

		// Round term by term: processors with a fused multiply-add would otherwise decide differently.
		answers := float64(float64(b) * float64(answerValue+r.accuracy))
		worth := answers - float64(price*float64(float64(r.exec[b])/1e9))
		left := m.q.len() - (first + b)
		if left > 0 {
			next := max(now, freeAt).Add(r.exec[b])
			left = min(left, m.q.len()-p.firstAllowing(now, m, &h.residents[0].execution, 0, 1, next))
		}
		worth += float64(float64(float64(left)*max(0, answerValue+h.worth)) * leftValue)
		if best == nil || worth > most {
			best, size, most = r, b, worth
		}
	}

	return best, size
}
