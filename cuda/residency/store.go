package residency

import (
	"fmt"
	"time"

	"downbeat.dev/cuda"
)

// Config bounds a Store.
type Config struct {
	DeviceBytes int64   // reserved at Open
	PinnedBytes int64   // for evicted contents; taken from the device's pool as needed
	Alpha       float64 // a of the score; 0: the paper's 0.4
	// Hang is the longest time of a copy out of pinned memory, after which the device counts as hanging; 0:
	// unlimited.
	Hang time.Duration
}

// Stats are a Store's counts of moves.
type Stats struct {
	Hits, Loads                 int64 // contents that were, and were not, on the device when acquired
	LoadsPinned, LoadsPageable  int64 // loads by source
	Evictions                   [kinds]int64
	ToPinned, ToPageable        int64 // evictions by destination
	Freed                       int64 // intermediates freed at the end of their batch
	BytesIn, BytesOut           int64
	LoadTime                    time.Duration // device time of the loads' copies
	DeviceBytes, PinnedBytes    int64         // held now
	FragmentEvictions, Fallback int64         // evictions because of fragmentation; slabs that could not be pinned
}

// Store keeps contents on one device. Only one goroutine at a time may use it: the one that submits batches.
type Store struct {
	dev     *cuda.Device
	hang    time.Duration // see Config
	table   *Table
	arena   *cuda.Arena
	load    *cuda.Stream // every move runs here, in order
	moved   *cuda.Event  // the latest move
	bodies  []body       // by ID
	leaving []departure
	stats   Stats
	moves   []Move
	scratch cuda.Submission
	behind  bool // scratch holds commands that the device refused; they precede all others
	moving  bool // the latest move may not have ended
}

// body describes the location of a content's bytes.
type body struct {
	addr  cuda.Address // on the device; 0 elsewhere
	slab  *cuda.Slab   // while Pinned
	data  []byte       // the pageable copy; for parameters the owner's, which is never written
	dirty bool         // the device's bytes are newer than data
	owned bool         // the store owns data
}

// Open reserves the device memory.
func Open(dev *cuda.Device, c Config) (*Store, error) {
	if c.Alpha == 0 {
		c.Alpha = 0.4
	}

	table, err := NewTable(c.DeviceBytes, c.PinnedBytes, c.Alpha)
	if err != nil {
		return nil, fmt.Errorf("open residency: %w", err)
	}

	s := &Store{dev: dev, hang: c.Hang, table: table}
	if s.arena, err = dev.NewArena(c.DeviceBytes); err == nil {
		if s.load, err = dev.NewStream(); err == nil {
			s.moved, err = dev.NewEvent()
		}
	}

	if err != nil {
		// Close frees the resources opened before the failure.
		s.Close()
		return nil, fmt.Errorf("open residency: %w", err)
	}
	return s, nil
}

// Add adds a content. data are its bytes, which must stay unchanged until Remove; nil for intermediates.
func (s *Store) Add(c Content, data []byte) (ID, error) {
	if want := c.Bytes; !c.Kind.isIntermediate() && int64(len(data)) != want || c.Kind.isIntermediate() && data != nil {
		return 0, fmt.Errorf("content %q: %d bytes of data for %d", c.Name, len(data), want)
	}

	c.Bytes = (c.Bytes + 255) &^ 255 // the arena's granularity
	id, err := s.table.Add(c)
	if err != nil {
		return 0, err
	}

	// The table reuses IDs of removed contents.
	if int(id) == len(s.bodies) {
		s.bodies = append(s.bodies, body{})
	}

	s.bodies[id] = body{data: data}
	return id, nil
}

// Acquire brings ids to the device and makes later commands on st in sub wait for them. They stay until Release. now
// is the caller's clock. Address returns the addresses. After an error none of them is in use.
func (s *Store) Acquire(now time.Duration, ids []ID, sub *cuda.Submission, st *cuda.Stream) error {
	if err := s.collectCopies(); err != nil {
		return err
	}

	for _, id := range ids {
		if s.table.Place(id) == Device {
			s.stats.Hits++
		}
	}

	moves, err := s.table.Acquire(now, ids, s.moves[:0])
	s.moves = moves
	if err != nil {
		return err
	}

	// A batch without moves must also follow the commands that the device refused so far.
	if len(moves) > 0 || s.behind {
		if err := s.performMoves(moves); err != nil {
			s.undoUses(ids)
			return err
		}
	}

	if s.moving { // also for moves of a refused batch, which never waited for them
		sub.Wait(st, s.moved)
	}
	return nil
}

// undoUses releases the uses after a failed move, and updates the table with the actual place of every content.
func (s *Store) undoUses(ids []ID) {
	s.table.endUses(ids)

	// The table planned moves that did not happen: use the actual places of the bytes.
	for i := range s.bodies {
		e, b := &s.table.contents[i], &s.bodies[i]
		if !e.live {
			continue
		}

		place := Pageable
		switch {
		case b.addr != 0:
			place = Device
		case b.slab != nil:
			place = Pinned
		case e.Kind.isIntermediate():
			place = Nowhere
		}
		s.table.putEntry(e, place)
	}
}

// Address returns a content's device address, between Acquire and Release; otherwise 0.
func (s *Store) Address(id ID) cuda.Address { return s.bodies[id].addr }

// Changed reports that a kernel writes the content (retraining): copies elsewhere are stale.
func (s *Store) Changed(id ID) { s.bodies[id].dirty = true }

// Release ends a use. The commands that used ids must have ended, or precede the next Acquire's wait: pass the event
// after them as done, nil if they have ended.
func (s *Store) Release(ids []ID, done *cuda.Event) error {
	s.moves = s.table.Release(ids, s.moves[:0])

	s.beginScratch()
	// The moves must not overtake the batch that used these contents.
	if done != nil {
		s.scratch.Wait(s.load, done)
	}

	for _, m := range s.moves {
		if err := s.moveContent(m); err != nil {
			return err
		}
	}

	if s.scratch.Len() == 0 {
		return nil
	}

	s.scratch.Record(s.load, s.moved)
	return s.flushScratch()
}

// Bytes returns the number of bytes given to Add; for an intermediate, its size.
func (s *Store) Bytes(id ID) int64 {
	if data := s.bodies[id].data; data != nil && !s.bodies[id].owned {
		return int64(len(data))
	}
	return s.table.contents[id].Bytes
}

// Describe returns a content's description.
func (s *Store) Describe(id ID) Content { return s.table.contents[id].Content }

// Hold is Acquire of one content if there is room for it without evicting others. ended is recorded when its bytes are
// on the device.
func (s *Store) Hold(now time.Duration, id ID, ended *cuda.Event) (fits bool, err error) {
	if !s.table.hasRoom(id) {
		return false, nil
	}

	if s.moves, err = s.table.Acquire(now, []ID{id}, s.moves[:0]); err != nil {
		return false, err
	}
	err = s.performMoves(s.moves)
	if err == nil {
		s.beginScratch()
		s.scratch.Record(s.load, ended)
		err = s.flushScratch()
	}

	if err != nil {
		s.undoUses([]ID{id})
	}
	return err == nil, err
}

// Remove removes a content that is not in use.
func (s *Store) Remove(id ID) error {
	if err := s.table.Remove(id); err != nil {
		return err
	}

	b := &s.bodies[id]
	// A copy out of it may still be under way.
	if b.slab != nil {
		s.leaving = append(s.leaving, departure{slab: b.slab})
	}

	var err error
	if b.addr != 0 {
		err = s.arena.Free(b.addr, s.load)
	}

	*b = body{}
	return err
}

// Stats returns the current counts.
func (s *Store) Stats() Stats {
	_ = s.collectCopies()
	st := s.stats
	st.DeviceBytes, st.PinnedBytes = s.table.Used()
	return st
}

// Close frees everything; no command may still use the contents.
func (s *Store) Close() {
	for _, l := range s.leaving {
		l.freeParts()
	}
	s.leaving = nil

	for i := range s.bodies {
		s.bodies[i].slab.Free()
		s.bodies[i] = body{}
	}

	if s.arena != nil {
		s.arena.Close()
		s.arena = nil
	}

	s.moved.Free()
	s.load.Free()
	s.moved, s.load = nil, nil
}
