//go:build rdma && linux && cgo

package rdma

/*
#include "verbs.h"
*/
import "C"

import "time"

// Reads that callbacks post while the loop ends a peer's chains are posted together when the loop is through with its
// completions, and further completions come back with the post. So a read posted by the end of another costs one
// crossing into C and one look at the clock; on a fast device (soft-RoCE executes a read within the post) no further
// crossing to see its end.

// poll takes completions and ends their chains. Only the loop calls it.
func (d *verbsDevice) poll() int {
	// A callback may poll again (drain), so the array belongs to this call.
	wcs, n := d.ahead, d.aheadLen
	if n > 0 {
		d.ahead, d.aheadLen = nil, 0
	} else {
		wcs = d.wcs()
		n = int(C.db_poll(C.uintptr_t(uintptr(d.handle)), &wcs[0], C.int(len(wcs))))
	}

	// Callbacks may read again: such reads are posted once all completions have been handled.
	if n > 0 {
		now := d.node.now()
		d.depth++
		for i := range n {
			d.endCompletion(now, &wcs[i])
		}
		if d.depth--; d.depth == 0 {
			d.postNextReads(now)
		}
	}
	d.spare = append(d.spare, wcs)
	return max(n, 0)
}

func (d *verbsDevice) endCompletion(now time.Duration, wc *C.db_wc) {
	if wc.id&C.DB_RECV != 0 {
		d.received(wc)
		return
	}
	if p := d.pair(uint32(wc.id >> 32)); p != nil { // otherwise the pair is gone
		p.handleCompletion(now, uint32(wc.id), uint32(wc.status))
	}
}

// postNextReads posts the reads from the peers whose chains ended at now.
func (d *verbsDevice) postNextReads(now time.Duration) {
	for i, p := range d.pumping {
		d.pumping[i] = nil
		p.mu.Lock()
		p.turn = 0
		p.pumpLocked(now, i == len(d.pumping)-1)
	}
	d.pumping = d.pumping[:0]
}

// post posts the pair's work requests; with brings, completions may come back with it. p.mu is held.
func (d *verbsDevice) post(p *verbsPair, brings bool) error {
	// Completions that a post brings are kept for the next poll; there is no room for a second set.
	n := C.int(len(p.wrs))
	if !brings || d.aheadLen > 0 {
		return checkVerbs(C.db_post(C.uintptr_t(uintptr(p.qp)), &p.wrs[0], n), "post")
	}

	wcs := d.wcs()
	got := C.db_post_poll(C.uintptr_t(uintptr(p.qp)), &p.wrs[0], n, &wcs[0], C.int(len(wcs)))
	if got > 0 {
		d.ahead, d.aheadLen = wcs, int(got)
		return nil
	}
	d.spare = append(d.spare, wcs)
	return checkVerbs(-got, "post")
}

func (d *verbsDevice) wcs() *[64]C.db_wc {
	if k := len(d.spare); k > 0 {
		w := d.spare[k-1]
		d.spare = d.spare[:k-1]
		return w
	}
	return new([64]C.db_wc)
}

// pair finds a queue pair by its id: most often the same as last time.
func (d *verbsDevice) pair(id uint32) *verbsPair {
	if d.last == nil || d.last.id != id {
		d.mu.Lock()
		d.last = d.pairs[id]
		d.mu.Unlock()
	}
	return d.last
}
