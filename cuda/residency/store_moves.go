package residency

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"downbeat.dev/cuda"
)

// departure is a slab, or a pair of events, that a copy under way still needs.
type departure struct {
	slab     *cuda.Slab
	from, to *cuda.Event
	loaded   bool // count the time between the events as load time
}

// performMoves carries out moves in one submission on the load stream; if nothing needs copying, as for
// intermediates, there is no submission.
func (s *Store) performMoves(moves []Move) error {
	s.beginScratch()
	timed, err := s.startTiming(moves)
	if err != nil {
		return err
	}

	for _, m := range moves {
		if err = s.moveContent(m); err != nil {
			break
		}
	}

	if timed.to != nil {
		s.scratch.Record(s.load, timed.to)
	}

	if s.scratch.Len() == 0 {
		return err
	}

	// The event marks the end of all moves before it: batches wait for it on their own streams.
	s.scratch.Record(s.load, s.moved)
	err = errors.Join(err, s.flushScratch())
	timed.loaded = timed.to != nil && err == nil
	s.leaving = append(s.leaving, timed)
	return err
}

// startTiming starts a measurement if any of moves loads bytes.
func (s *Store) startTiming(moves []Move) (d departure, err error) {
	if !slices.ContainsFunc(moves, func(m Move) bool { return m.To == Device && m.From != Nowhere }) {
		return d, nil
	}

	if d.from, err = s.dev.NewEvent(); err == nil {
		d.to, err = s.dev.NewEvent()
	}
	if err != nil {
		d.freeParts()
		return departure{}, fmt.Errorf("move contents: %w", err)
	}

	s.scratch.Record(s.load, d.from)
	return d, nil
}

// beginScratch empties scratch, unless it holds refused commands.
func (s *Store) beginScratch() {
	if !s.behind {
		s.scratch.Reset()
	}
}

// flushScratch submits scratch. Commands that the device refuses stay in scratch (see cuda.Device.Submit): the bodies
// count them as done, and they will run before any others.
func (s *Store) flushScratch() error {
	err := s.dev.Submit(&s.scratch)
	s.behind, s.moving = err != nil, true
	return err
}

func (s *Store) moveContent(m Move) error {
	b := &s.bodies[m.ID]
	bytes := s.table.contents[m.ID].Bytes
	switch {
	case m.To == Device:
		return s.bringIn(m, b, bytes)
	case m.From == Device:
		return s.sendOff(m, b, bytes)
	case m.From == Pinned && m.To == Pageable:
		return s.demoteContent(b)
	}
	return nil
}

// bringIn allocates device memory for a content and copies it in. If fragmentation leaves no piece that is large
// enough, it evicts more contents.
func (s *Store) bringIn(m Move, b *body, bytes int64) error {
	// While no hole of the arena is large enough, evict unused contents.
	for {
		addr, err := s.arena.Alloc(&s.scratch, s.load, bytes)
		if err == nil {
			b.addr = addr
			break
		}
		moves, ok := s.table.Evict(nil)
		if !errors.Is(err, cuda.ErrOutOfMemory) || !ok {
			return fmt.Errorf("load %q: %w", s.table.contents[m.ID].Name, err)
		}
		s.stats.FragmentEvictions++
		for _, e := range moves {
			if err := s.moveContent(e); err != nil {
				return err
			}
		}
	}

	s.stats.Loads++

	switch m.From {
	case Pinned:
		s.stats.LoadsPinned++
		s.scratch.CopyIn(s.load, b.addr, b.slab.Bytes())
		s.stats.BytesIn += int64(len(b.slab.Bytes()))
		// The copy reads the slab until it has ended.
		s.leaving = append(s.leaving, departure{slab: b.slab})
		b.slab = nil
	case Pageable:
		s.stats.LoadsPageable++
		s.scratch.CopyIn(s.load, b.addr, b.data)
		s.stats.BytesIn += int64(len(b.data))
	}
	return nil
}

// sendOff moves a content off the device.
func (s *Store) sendOff(m Move, b *body, bytes int64) error {
	// A content with an unchanged copy in pageable memory needs only its own length.
	n := bytes
	if b.data != nil && !b.owned {
		n = int64(len(b.data))
	}

	switch m.To {
	case Nowhere:
		s.stats.Freed++
	case Pinned:
		slab, err := s.dev.AllocHost(n)
		if err != nil {
			return fmt.Errorf("evict %q: %w", s.table.contents[m.ID].Name, err)
		}
		if !slab.Pinned() {
			s.stats.Fallback++
		}
		b.slab = slab
		s.copyOut(slab.Bytes(), b.addr)
		s.stats.ToPinned++
	case Pageable:
		// Unchanged bytes of the owner need no copy.
		if b.dirty || b.data == nil {
			if !b.owned {
				b.data, b.owned = make([]byte, n), true
			}
			s.copyOut(b.data, b.addr)
			b.dirty = false
		}
		s.stats.ToPageable++
	}

	if m.To != Nowhere {
		s.stats.Evictions[s.table.contents[m.ID].Kind]++
	}

	// The next user of the memory is ordered after the load stream, which copies the bytes out.
	err := s.arena.Free(b.addr, s.load)
	b.addr = 0
	return err
}

func (s *Store) copyOut(dst []byte, src cuda.Address) {
	s.scratch.CopyOut(s.load, dst, src)
	s.stats.BytesOut += int64(len(dst))
}

// demoteContent moves a content from pinned to pageable memory: its slab is freed when no copy needs it. Bytes
// without another copy are copied, after the copy that filled the slab has ended.
func (s *Store) demoteContent(b *body) error {
	// A changed content exists only in pinned memory: it must have arrived there before it can be copied on.
	if b.dirty {
		s.scratch.Record(s.load, s.moved)
		if err := s.flushScratch(); err != nil {
			return fmt.Errorf("move out of pinned memory: %w", err)
		}

		s.beginScratch()
		ctx := context.Background()
		if s.hang > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, s.hang)
			defer cancel()
		}
		if err := s.dev.Wait(ctx, s.moved); err != nil {
			return fmt.Errorf("move out of pinned memory: %w", err)
		}

		if !b.owned {
			b.data, b.owned = make([]byte, len(b.slab.Bytes())), true
		}
		copy(b.data, b.slab.Bytes())
		b.dirty = false
	}

	// The slab is freed after the next moves have ended.
	s.leaving = append(s.leaving, departure{slab: b.slab})
	b.slab = nil
	return nil
}

// collectCopies frees the resources of copies once the latest move has ended. Refused commands also need them.
func (s *Store) collectCopies() error {
	// The event's record is among the commands that the device has not accepted.
	if s.behind {
		return nil
	}

	done, err := s.dev.Done(s.moved)
	if err != nil || !done {
		return err
	}

	s.moving = false

	for _, l := range s.leaving {
		if l.loaded {
			if t, err := s.dev.Elapsed(l.from, l.to); err == nil {
				s.stats.LoadTime += t
			}
		}
		l.freeParts()
	}

	s.leaving = s.leaving[:0]
	return nil
}

func (l departure) freeParts() {
	l.slab.Free()
	l.from.Free()
	l.to.Free()
}
