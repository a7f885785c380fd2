package stream

import (
	"fmt"

	"downbeat.dev/rdma/memory"
)

// Status bytes of a data frame: one for each read.
const (
	StatusOK = iota
	StatusNotOffered
)

// landing describes the destination of the bytes of the chain being answered.
type landing struct {
	chain    *Chain
	gaps     []gap
	skip     int // bytes to drop: the rest of a chain that was given up
	refusals memory.Refusals
}

// gap is the missing part of read i.
type gap struct {
	b []byte
	i int
}

// beginLanding computes the destination of the bytes after a data frame's statuses.
func (l *landing) beginLanding(chain *Chain, f Frame, statuses []byte) error {
	if chain == nil || chain.id != f.ID || len(chain.reads) != int(f.Count) {
		return fmt.Errorf("%w: data that was not asked for", memory.ErrProtocol)
	}

	// The peer's statuses say which reads have bytes; the announced length must be the sum of their lengths.
	l.chain, l.gaps, l.refusals = chain, l.gaps[:0], memory.Refusals{}
	want := uint64(f.Count)
	for i, s := range statuses {
		if s != StatusOK {
			l.refusals.Add(i)
			continue
		}

		length := int(chain.reads[i].Src.Length)
		want += uint64(length)

		// A chain that was given up has no destinations any more: count and drop its bytes.
		switch {
		case chain.givenUp:
			l.skip += length
		case length > 0:
			l.gaps = append(l.gaps, gap{chain.reads[i].Dst, i})
		}
	}

	if uint64(f.Body) != want {
		l.chain, l.gaps, l.skip = nil, l.gaps[:0], 0
		return fmt.Errorf("%w: data of %d bytes for a chain of %d", memory.ErrProtocol, f.Body, want)
	}
	return nil
}

// isComplete reports whether all bytes of the chain have landed.
func (l *landing) isComplete() bool { return l.chain != nil && len(l.gaps) == 0 && l.skip == 0 }

// endLanding returns the complete chain, and its error.
func (l *landing) endLanding() (*Chain, error) {
	chain, err := l.chain, l.refusals.Err()
	l.chain, l.refusals = nil, memory.Refusals{}
	return chain, err
}

// fillGaps counts n bytes that landed in the gaps and calls told for every complete read.
func (l *landing) fillGaps(n int, told func(i int)) {
	// The stream has the reads' bytes in the order of the chain, so gaps close from the front.
	closed := 0
	for n > 0 && closed < len(l.gaps) {
		g := &l.gaps[closed]
		k := min(n, len(g.b))
		g.b = g.b[k:]
		n -= k
		if len(g.b) == 0 {
			told(g.i)
			closed++
		}
	}

	l.gaps = l.gaps[:copy(l.gaps, l.gaps[closed:])]
}

// giveUp turns the gaps of a chain into bytes to drop.
func (l *landing) giveUp(chain *Chain) {
	if l.chain != chain {
		return
	}

	for _, g := range l.gaps {
		l.skip += len(g.b)
	}
	l.gaps = l.gaps[:0]
}

// addGaps adds the gaps to a vector, as far as it has room.
func (l *landing) addGaps(v *vector) {
	for i := 0; i < len(l.gaps) && !v.isFull(); i++ {
		v.addPiece(l.gaps[i].b)
	}
}
