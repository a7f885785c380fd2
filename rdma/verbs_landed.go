//go:build rdma && linux && cgo

package rdma

import (
	"encoding/binary"
	"slices"
	"time"

	"downbeat.dev/rdma/memory"
)

// verifyEntries looks at the entries that came with the reads before end and notes the reads that they
// refuse. p.mu is held.
func (p *verbsPair) verifyEntries(v *verbsChain, end int) {
	for ; v.seen < end; v.seen++ {
		i := v.seen
		if v.early > 0 && slices.Contains(v.bad[:v.early], i) {
			continue
		}

		// An entry must have had the read's key, and enough bytes, whenever it was read.
		r := v.chain[i].Src
		n, ok := entries(r), true
		if v.again {
			n = 1
		}
		for range n {
			e := p.scratch[v.entry*memory.EntryBytes:]
			v.entry = (v.entry + 1) % cap(p.wrs)
			key, length := binary.LittleEndian.Uint64(e), binary.LittleEndian.Uint64(e[8:])
			ok = ok && key == r.Key && key != 0 && uint64(r.Offset)+uint64(r.Length) <= length
		}

		if !ok {
			v.bad = append(v.bad, i)
		}
	}
}

// tellLanded reports the reads of a range that have landed, if their entries are good: if done reports success later, it
// is for these bytes.
func (v *verbsChain) tellLanded(from, end int) {
	if v.each == nil {
		return
	}
	for i := from; i < end; i++ {
		if !v.refused(i) {
			memory.Tell(v.each, v.chain, i)
		}
	}
}

// readLanded tells of the oldest post's reads up to the one named.
func (p *verbsPair) readLanded(i int) {
	p.mu.Lock()
	if p.gone || len(p.posted) == 0 || i >= len(p.posted[0].chain) {
		p.mu.Unlock()
		return
	}
	p.noteProgress()

	v := p.posted[0]
	from := v.seen
	p.verifyEntries(v, i+1)
	p.mu.Unlock()
	p.conn.socket.noteCall()
	v.tellLanded(from, i+1)
}

// readDone ends the oldest post of reads, and the chain unless its entries must be read once more.
func (p *verbsPair) readDone(now time.Duration) {
	p.mu.Lock()
	if p.gone || len(p.posted) == 0 {
		p.mu.Unlock()
		return
	}

	p.noteProgress()
	if p.ended != nil {
		p.keepChain(p.ended)
		p.ended = nil
	}

	v := p.posted[0]
	if v.parts > 0 {
		p.dev.parts.Add(int64(-v.parts))
	}
	p.posted = p.posted[:copy(p.posted, p.posted[1:])]
	p.free += v.need
	p.dev.outstanding.Add(-1)

	first, from := !v.again, v.seen
	p.verifyEntries(v, len(v.chain))

	// Entries prove a chain that was quick. Behind a slow one the memory may have been given to another offer meanwhile:
	// a second look at the entries decides.
	proven := v.again || now-v.posted < p.dev.proof || len(v.bad) == len(v.chain)
	if !proven {
		v.again, v.need = true, len(v.chain)-len(v.bad)
		p.waiting = slices.Insert(p.waiting, 0, v)
		p.rechecks++
	}

	if p.turn == 0 {
		p.turn = now
		p.dev.pumping = append(p.dev.pumping, p)
	}

	p.mu.Unlock()
	p.conn.socket.noteCall()
	if first {
		v.tellLanded(from, len(v.chain))
	}

	if proven {
		p.dev.noteChainTime(now - v.start)
		p.conn.peer.finishAt(now, v.start, v.chain, v.err(), v.done)
		v.forgetReader()
		p.ended = v
	}
}

// err is what the chain ends with.
func (v *verbsChain) err() error {
	if len(v.bad) == 0 {
		return nil
	}
	failed := slices.Clone(v.bad)
	slices.Sort(failed)
	return &ChainError{Failed: failed, Err: ErrNotOffered}
}

// finishPair ends a chain of which nothing is under way, and keeps its memory.
func (p *verbsPair) finishPair(v *verbsChain) {
	p.conn.peer.finishChain(v.start, v.chain, v.err(), v.done)
	v.forgetReader()
	p.mu.Lock()
	p.keepChain(v)
	p.mu.Unlock()
}

// forgetReader lets go of what belongs to the reader.
func (v *verbsChain) forgetReader() {
	clear(v.chain)
	v.each, v.done = nil, nil
}

// keepChain keeps the memory of a chain for the next. p.mu is held.
func (p *verbsPair) keepChain(v *verbsChain) {
	if len(p.spare) < 16 {
		p.spare = append(p.spare, v)
	}
}
