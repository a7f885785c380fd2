package residency

import (
	"cmp"
	"slices"
	"time"
)

// Evict evicts one more content from the device, for a caller whose allocator found no room because of fragmentation.
// It returns false if all contents are in use.
func (t *Table) Evict(moves []Move) ([]Move, bool) {
	t.orderVictims()
	if len(t.order) == 0 {
		return moves, false
	}
	return t.evictContent(t.order[0], moves), true
}

// makeRoom evicts until need bytes are free. Acquire has checked that this is possible.
func (t *Table) makeRoom(need int64, moves []Move) []Move {
	if t.deviceUsed+need <= t.deviceMax {
		return moves
	}

	t.orderVictims()
	for _, id := range t.order {
		if t.deviceUsed+need <= t.deviceMax {
			break
		}
		moves = t.evictContent(id, moves)
	}
	return collapseMoves(moves)
}

// collapseMoves merges two moves of one decision: a content that is pinned and then moved on goes directly to
// pageable memory.
func collapseMoves(moves []Move) []Move {
	for i := len(moves) - 1; i >= 0; i-- {
		if moves[i].From != Pinned || moves[i].To != Pageable {
			continue
		}
		first := slices.Index(moves[:i], Move{moves[i].ID, Device, Pinned})
		if first >= 0 {
			moves[first].To = Pageable
			moves = slices.Delete(moves, i, i+1)
		}
	}
	return moves
}

// orderVictims orders what may leave the device: by type first, then by score, then by ID (R3, R4); or by age.
func (t *Table) orderVictims() {
	t.order = t.order[:0]
	for i := range t.contents {
		if e := &t.contents[i]; e.live && e.place == Device && e.users == 0 {
			t.order = append(t.order, ID(i))
		}
	}

	slices.SortFunc(t.order, func(a, b ID) int {
		x, y := &t.contents[a], &t.contents[b]
		if t.byAge {
			return cmp.Or(cmp.Compare(x.last, y.last), cmp.Compare(a, b))
		}
		return cmp.Or(
			cmp.Compare(t.TypeScore(y.Kind), t.TypeScore(x.Kind)),
			cmp.Compare(x.Kind, y.Kind),
			cmp.Compare(t.Score(b), t.Score(a)),
			cmp.Compare(a, b))
	})
}

// evictContent moves one content out: to pinned memory if there is room, or if contents with higher scores can move
// on to pageable memory; otherwise to pageable memory.
func (t *Table) evictContent(id ID, moves []Move) []Move {
	e := &t.contents[id]

	// Pinned memory is for the contents needed soonest: those with higher scores make way.
	to := Pageable
	if t.pinnedUse+e.Bytes-t.pinnedAbove(t.Score(id)) <= t.pinnedMax {
		to = Pinned
		for t.pinnedUse+e.Bytes > t.pinnedMax {
			worst := t.worstPinned()
			moves = append(moves, Move{worst, Pinned, Pageable})
			t.putEntry(&t.contents[worst], Pageable)
		}
	}

	moves = append(moves, Move{id, Device, to})
	t.putEntry(e, to)
	return moves
}

// pinnedAbove returns the pinned bytes of contents with a higher score that may make way.
func (t *Table) pinnedAbove(score time.Duration) (n int64) {
	for i := range t.contents {
		if e := &t.contents[i]; e.mayLeavePinned() && t.Score(ID(i)) > score {
			n += e.Bytes
		}
	}
	return n
}

// mayLeavePinned reports whether a content is in pinned memory to stay. One in use is about to be copied to the device,
// which takes longer from pageable memory.
func (e *entry) mayLeavePinned() bool { return e.live && e.place == Pinned && e.users == 0 }

func (t *Table) worstPinned() ID {
	worst := -1
	for i := range t.contents {
		if e := &t.contents[i]; e.mayLeavePinned() && (worst < 0 || t.Score(ID(i)) > t.Score(ID(worst))) {
			worst = i
		}
	}
	return ID(worst)
}
