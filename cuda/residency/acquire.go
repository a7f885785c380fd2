package residency

import (
	"fmt"
	"time"
)

// Acquire puts ids in use at now and appends the moves that make room for them and bring them in. After an error
// nothing is in use and nothing has moved. Several batches may acquire an id at once.
func (t *Table) Acquire(now time.Duration, ids []ID, moves []Move) ([]Move, error) {
	var need int64

	for i, id := range ids {
		e, err := t.findEntry(id)
		if err != nil {
			t.endUses(ids[:i])
			return moves, err
		}
		if e.users++; e.users == 1 && e.place != Device {
			need += e.Bytes
		}
	}

	// Contents in use cannot leave. If they alone are too large, no eviction helps.
	if held := t.heldBytes(); held > t.deviceMax {
		t.endUses(ids)
		return moves, fmt.Errorf("%d contents need %d bytes, with what else is in use %d of %d: %w", len(ids), need, held, t.deviceMax, ErrDoesNotFit)
	}

	moves = t.makeRoom(need, moves)

	for _, id := range ids {
		e := &t.contents[id]
		if e.place != Device {
			moves = append(moves, Move{id, e.place, Device})
			t.putEntry(e, Device)
		}
		t.learnUse(e, now)
	}
	return moves, nil
}

// hasRoom reports whether a content is on the device, or fits there without evicting others.
func (t *Table) hasRoom(id ID) bool {
	e, err := t.findEntry(id)
	return err == nil && (e.place == Device || t.deviceUsed+e.Bytes <= t.deviceMax)
}

func (t *Table) endUses(ids []ID) {
	for _, id := range ids {
		t.contents[id].users--
	}
}

// heldBytes returns the bytes of all contents in use.
func (t *Table) heldBytes() (n int64) {
	for i := range t.contents {
		if e := &t.contents[i]; e.live && e.users > 0 {
			n += e.Bytes
		}
	}
	return n
}

// learnUse updates the reuse time of a content and of its type: a moving mean over about eight uses.
func (t *Table) learnUse(e *entry, now time.Duration) {
	if e.seen && now > e.last {
		e.reuse += (now - e.last - e.reuse) / 8
		t.typeReuse[e.Kind] += (now - e.last - t.typeReuse[e.Kind]) / 64
	}
	e.seen, e.last = true, now
}

// Release ends a use of ids. Intermediates without a use are freed (§3.4.1).
func (t *Table) Release(ids []ID, moves []Move) []Move {
	for _, id := range ids {
		e, err := t.findEntry(id)
		if err != nil || e.users == 0 {
			panic(fmt.Sprintf("residency: release of content %d, which is not in use", id))
		}
		if e.users--; e.users == 0 && e.Kind.isIntermediate() {
			moves = append(moves, Move{id, e.place, Nowhere})
			t.putEntry(e, Nowhere)
		}
	}
	return moves
}
