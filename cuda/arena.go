package cuda

import (
	"fmt"
	"slices"
	"sync"
)

// Arena allocates parts of one block of device memory in stream order. Memory that one stream frees may be reused by
// the same stream at once, because its commands run in order; another stream gets it only after an event. So the host
// never waits, and the driver's allocator is called once.
//
// Free must come after the commands that use the block were put into a Submission, and submissions that share blocks
// must be submitted in the order in which they were built.
type Arena struct {
	dev    *Device
	mem    *Memory
	mu     sync.Mutex
	blocks []arenaBlock // by offset, covering the whole arena; adjacent free blocks with the same last user are joined
	events []*Event     // one for each stream that ever passed a block to another
	stats  ArenaStats
}

// ArenaStats counts what the arena did, in bytes and blocks.
type ArenaStats struct {
	Bytes, InUse, HighWater int64
	SameStream              int64 // blocks reused without an event
	CrossStream             int64 // blocks reused behind an event
	Refused                 int64
}

// arenaBlock is a part of the arena, in use or free. A free block records its last user.
type arenaBlock struct {
	offset, bytes int64
	used          bool
	last          *Stream // nil: unused since the arena was made, or since everything was waited for
}

const arenaAlign = 256

// NewArena reserves bytes of device memory.
func (d *Device) NewArena(bytes int64) (*Arena, error) {
	bytes = (bytes + arenaAlign - 1) &^ (arenaAlign - 1)
	m, err := d.Alloc(bytes)
	if err != nil {
		return nil, fmt.Errorf("new arena: %w", err)
	}
	return &Arena{dev: d, mem: m, blocks: []arenaBlock{{bytes: bytes}}, stats: ArenaStats{Bytes: bytes}}, nil
}

// Alloc returns bytes for use by st in commands that follow in s. If the only fit was last used by another stream, it
// adds a record and a wait to s. ErrOutOfMemory contains the requested and the free bytes.
func (a *Arena) Alloc(s *Submission, st *Stream, bytes int64) (Address, error) {
	if bytes <= 0 {
		return 0, &Error{Op: fmt.Sprintf("arena alloc of %d bytes", bytes), Code: CodeInvalidValue}
	}

	// Rounding keeps every block aligned as the driver's own blocks are.
	bytes = (bytes + arenaAlign - 1) &^ (arenaAlign - 1)

	a.mu.Lock()
	defer a.mu.Unlock()

	i := a.fitBlock(st, bytes)
	if i < 0 {
		a.stats.Refused++
		return 0, &Error{Op: fmt.Sprintf("arena alloc of %d bytes with %d of %d in use", bytes, a.stats.InUse, a.stats.Bytes), Code: CodeOutOfMemory}
	}

	// The block may still be in use on the stream that had it last.
	if err := a.orderAfter(s, st, a.blocks[i].last); err != nil {
		return 0, err
	}

	// The remainder stays free, with the same last user.
	b := &a.blocks[i]
	if b.bytes > bytes {
		rest := arenaBlock{offset: b.offset + bytes, bytes: b.bytes - bytes, last: b.last}
		b.bytes = bytes
		a.blocks = slices.Insert(a.blocks, i+1, rest)
		b = &a.blocks[i]
	}

	b.used, b.last = true, st
	a.stats.InUse += bytes
	a.stats.HighWater = max(a.stats.HighWater, a.stats.InUse)
	return a.mem.addr + Address(b.offset), nil
}

// fitBlock returns the smallest free block that holds bytes, preferring one that needs no event.
func (a *Arena) fitBlock(st *Stream, bytes int64) int {
	best, bestEasy := -1, false
	for i := range a.blocks {
		b := &a.blocks[i]
		if b.used || b.bytes < bytes {
			continue
		}

		// A block of another stream costs an event and a wait, so a larger block without that cost comes first.
		easy := b.last == nil || b.last == st
		if best < 0 || easy && !bestEasy || easy == bestEasy && b.bytes < a.blocks[best].bytes {
			best, bestEasy = i, easy
		}
	}
	return best
}

// orderAfter makes st wait for the last user of a block.
func (a *Arena) orderAfter(s *Submission, st, last *Stream) error {
	// Commands of one stream run in order: those that used the block end before these begin.
	if last == nil || last == st {
		if last == st && st != nil {
			a.stats.SameStream++
		}
		return nil
	}

	ev, err := a.dev.NewEvent()
	if err != nil {
		return fmt.Errorf("arena alloc: %w", err)
	}
	s.Record(last, ev)
	s.Wait(st, ev)
	a.events = append(a.events, ev) // kept until Close: s is not submitted yet

	if len(a.events) > arenaEventsMax {
		a.events[0].Free() // submitted long ago; a wait keeps the record that it was given at submission
		a.events = slices.Delete(a.events, 0, 1)
	}
	a.stats.CrossStream++
	return nil
}

// arenaEventsMax is how many cross-stream reuses may lie between building and submitting.
const arenaEventsMax = 64

// Free returns the block at addr; last is the stream whose commands used it last, nil for the one it was allocated
// for.
func (a *Arena) Free(addr Address, last *Stream) error {
	a.mu.Lock()
	defer a.mu.Unlock()

	offset := int64(addr) - int64(a.mem.addr)
	i, found := slices.BinarySearchFunc(a.blocks, offset, func(b arenaBlock, o int64) int { return int(b.offset - o) })
	if !found || !a.blocks[i].used {
		return &Error{Op: fmt.Sprintf("arena free of offset %d, which is not in use", offset), Code: CodeInvalidValue}
	}

	a.blocks[i].used = false
	if last != nil {
		a.blocks[i].last = last
	}

	a.stats.InUse -= a.blocks[i].bytes
	// Adjacent free blocks are joined, or the arena would fragment.
	a.joinNext(i)
	a.joinNext(i - 1)
	return nil
}

// joinNext merges block i with the next if both are free. A merged block of two streams would need two events, so
// only blocks with the same last user, or none, are merged.
func (a *Arena) joinNext(i int) {
	if i < 0 || i+1 >= len(a.blocks) {
		return
	}

	b, next := &a.blocks[i], &a.blocks[i+1]
	if b.used || next.used || b.last != nil && next.last != nil && b.last != next.last {
		return
	}

	// Part of the merged block was used by next's stream, so the next user waits for that stream.
	if b.last == nil {
		b.last = next.last
	}
	b.bytes += next.bytes
	a.blocks = slices.Delete(a.blocks, i+1, i+2)
}

// Stats returns the counts now.
func (a *Arena) Stats() ArenaStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stats
}

// Close frees the arena's memory; nothing may still use it.
func (a *Arena) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, ev := range a.events {
		ev.Free()
	}

	a.events = nil
	a.mem.Free()
}
