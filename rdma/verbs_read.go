//go:build rdma && linux && cgo

package rdma

/*
#include "verbs.h"
*/
import "C"

import (
	"slices"
	"time"
	"unsafe"

	"downbeat.dev/rdma/memory"
	"downbeat.dev/rdma/stream"
)

// A chain is one post. A read from the start of a buffer is one READ, of the entry before the bytes
// and the bytes; any other is one of the bytes and one of the entry. Under a late key the entry is
// read first as well. An entry that is live proves the bytes if all of it took less than memory.ProofMax;
// otherwise the entries are read once more, by a second post (see memory.ProofMax).

// verbsChain is a chain under way.
type verbsChain struct {
	chain  []Read
	each   func(int) // may be nil
	done   func(error)
	start  time.Duration
	by     time.Duration // see stream.Request
	posted time.Duration // or a little before
	seen   int           // reads whose entries were looked at since the post
	entry  int           // in scratch: of the read to be looked at next
	again  bool          // the bytes are there; the entries are read once more
	bad    []int         // refused
	early  int           // of bad, before the post
	need   int           // work requests
	parts  int           // of them that are signaled beside the last
}

// readDirect posts the chain, or queues it while the send queue is full.
func (p *verbsPair) readDirect(r stream.Request) bool {
	p.mu.Lock()
	ok, ask := p.reaches(r.Reads)
	if !ok {
		p.mu.Unlock()
		if ask != 0 {
			p.conn.out.sendFrame(stream.Frame{Kind: stream.KindSegment, ID: ask})
		}
		return false
	}

	now := p.turn
	if now == 0 {
		now = p.conn.peer.node.now()
	}
	v := p.newChain(r, now)

	// A chain that could never be posted at once goes over the stream.
	if v.need > cap(p.wrs) {
		v.forgetReader()
		p.keepChain(v)
		p.mu.Unlock()
		return false
	}

	// While poll ends this pair's chains, what they ask for is posted at its end, in one go.
	p.waiting = append(p.waiting, v)
	if p.turn != 0 {
		p.mu.Unlock()
		return true
	}
	p.pumpLocked(now, false)
	return true
}

// reaches tells whether the chain's segments are known and its destinations registered, and the key
// by which to ask for a segment. p.mu is held.
func (p *verbsPair) reaches(chain []Read) (ok bool, ask uint64) {
	if p.gone || !p.ready {
		return false, 0
	}

	for i := range chain {
		at := chain[i].Src.Segment()

		// Ask for a segment once; until the peer grants it, chains go over the stream.
		if !p.knows(at) {
			if !p.asked[at] {
				p.asked[at] = true
				ask = chain[i].Src.Key
			}
			return false, ask
		}
		if len(chain[i].Dst) > 0 && p.dev.region(chain[i].Dst) == nil {
			return false, 0
		}
	}
	return true, 0
}

// knows tells whether the peer's segment may be read. p.mu is held.
func (p *verbsPair) knows(segment int) bool {
	return segment < len(p.segs) && p.segs[segment].Slots > 0
}

func (p *verbsPair) newChain(r stream.Request, now time.Duration) *verbsChain {
	var v *verbsChain
	if k := len(p.spare); k > 0 {
		v, p.spare = p.spare[k-1], p.spare[:k-1]
	} else {
		v = &verbsChain{}
	}

	v.chain, v.each, v.done, v.start, v.by = append(v.chain[:0], r.Reads...), r.Each, r.Done, now, r.By
	v.bad, v.need, v.again = v.bad[:0], 0, false

	for i := range v.chain {
		g, r := &p.segs[v.chain[i].Src.Segment()], v.chain[i].Src

		// Posted, a read outside of the segment would break the queue pair for all chains.
		if !g.Within(r) {
			v.bad = append(v.bad, i)
			continue
		}
		v.need += entries(r)
		if r.Length > 0 && r.Offset > 0 {
			v.need++
		}
	}

	return v
}

// pumpLocked posts what waits, and ends chains with nothing to post. brings: see verbsDevice.post. p.mu
// is held, and released.
func (p *verbsPair) pumpLocked(now time.Duration, brings bool) {
	ended, err := p.pump(now, brings)
	p.mu.Unlock()
	for _, v := range ended {
		p.finishPair(v)
	}
	if err != nil {
		p.doom(err.Error())
	}
}

// pump posts what waits in one go, as far as the send queue has room. It returns chains with nothing
// to post. now is at most the time. p.mu is held.
func (p *verbsPair) pump(now time.Duration, brings bool) (ended []*verbsChain, err error) {
	p.wrs = p.wrs[:0]
	for len(p.waiting) > 0 && p.waiting[0].need <= p.free {
		v := p.waiting[0]
		p.waiting = p.waiting[:copy(p.waiting, p.waiting[1:])]

		// Each of its reads was refused already.
		if v.need == 0 {
			ended = append(ended, v)
			continue
		}

		v.posted = now
		p.layOut(v)
		if p.idle() {
			p.noteProgress()
		}
		p.posted = append(p.posted, v)
		p.free -= v.need
		p.dev.outstanding.Add(1)
	}

	if len(p.wrs) > 0 {
		err = p.dev.post(p, brings)
	}
	return ended, err
}

// entries is how many times a read's entry is read with its bytes.
func entries(r Remote) int {
	if r.Late() && r.Length > 0 {
		return 2
	}
	return 1
}

// refused tells whether read i of the chain has failed already.
func (v *verbsChain) refused(i int) bool { return len(v.bad) > 0 && slices.Contains(v.bad, i) }

// layOut adds the work requests of a chain.
func (p *verbsPair) layOut(v *verbsChain) {
	v.entry, v.seen, v.early, v.parts = p.next, 0, len(v.bad), 0
	for i := range v.chain {
		r := &v.chain[i]
		if v.refused(i) {
			continue
		}

		if v.again || r.Src.Length == 0 {
			p.request(r, true, false)
			continue
		}

		// A late key was named before its bytes were there: its entry must be live before them, not only behind them.
		if entries(r.Src) == 2 {
			p.request(r, true, false)
		}
		if r.Src.Offset == 0 {
			p.request(r, true, true)
		} else {
			p.request(r, false, true)
			p.request(r, true, false)
		}

		if v.each != nil && r.Src.Length >= EachMin && p.dev.parts.Load() < partsMax {
			p.signal(eachEvent | uint32(i))
			p.dev.parts.Add(1)
			v.parts++
		}
	}

	p.signal(0)
}

// signal asks for a completion of the work request added last.
func (p *verbsPair) signal(event uint32) {
	last := &p.wrs[len(p.wrs)-1]
	last.flags, last.id = C.DB_SIGNALED, C.uint64_t(p.id)<<32|C.uint64_t(event)
}

// request adds one READ: of the entry, the bytes, or both where they lie together.
func (p *verbsPair) request(r *Read, entry, data bool) {
	g := &p.segs[r.Src.Segment()]
	bytes := g.Base + uint64(g.Place(r.Src))

	wr := C.db_wr{op: C.DB_READ, rkey: C.uint32_t(g.Rkey), remote: C.uint64_t(bytes)}
	if entry {
		wr.remote = C.uint64_t(bytes - uint64(r.Src.Offset) - memory.EntryBytes)
		wr.head, wr.head_lkey = C.uint64_t(uintptr(unsafe.Pointer(&p.scratch[p.next*memory.EntryBytes]))), C.uint32_t(p.lkey)
		p.next = (p.next + 1) % cap(p.wrs)
	}
	if data {
		wr.bytes = C.uint32_t(r.Src.Length)
		wr.local, wr.lkey = C.uint64_t(uintptr(unsafe.Pointer(&r.Dst[0]))), C.uint32_t(p.dev.region(r.Dst).lkey)
	}
	p.wrs = append(p.wrs, wr)
}
