//go:build rdma && linux && cgo

package rdma

/*
#include "verbs.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"downbeat.dev/rdma/memory"
	"downbeat.dev/rdma/stream"
)

type verbsWindow struct {
	mw   unsafe.Pointer
	rkey uint32
	key  uint64 // to be answered when bound
	seg  *memory.Segment
}

// giveSegment gives the peer the right to read a segment: a window bound to its queue pair, or the
// segment's own key where the device has no windows.
func (p *verbsPair) giveSegment(s *memory.Segment, key uint64) error {
	d := p.dev
	region := d.region(s.Memory())
	if region == nil {
		return ErrNotSupported
	}

	p.mu.Lock()
	if p.gone {
		p.mu.Unlock()
		return ErrClosed
	}

	// A device without memory windows grants the whole region, under the region's key.
	if d.info.windows == 0 {
		p.mu.Unlock()
		p.conn.out.sendGranted(stream.Granted{Layout: s.Layout(), Rkey: region.rkey, Base: uint64(region.base)}, key, nil)
		return nil
	}

	defer p.mu.Unlock()
	if p.windows[s.Layout().Index] != nil {
		return fmt.Errorf("%w: segment %d asked twice", ErrProtocol, s.Layout().Index)
	}

	// A window is bound to this pair alone: its key is useless to another peer.
	w := &verbsWindow{key: key, seg: s}
	if err := checkVerbs(C.db_window(d.handle, &w.mw), "allocate memory window"); err != nil {
		return err
	}

	var rkey C.uint32_t
	id := C.uint64_t(p.id)<<32 | C.uint64_t(windowEvent) | C.uint64_t(s.Layout().Index)
	if err := checkVerbs(C.db_bind(p.qp, w.mw, region.mr, C.uint64_t(region.base), C.uint64_t(region.size), id, &rkey), "bind memory window"); err != nil {
		C.db_window_free(w.mw)
		return err
	}

	w.rkey = uint32(rkey)
	p.windows[s.Layout().Index] = w
	if p.idle() {
		p.noteProgress()
	}

	p.binds++
	d.outstanding.Add(1)
	return nil
}

// answerBound answers the peer that requested a segment, when its window is bound.
func (p *verbsPair) answerBound(index int) {
	p.mu.Lock()
	w := p.windows[index]
	if p.gone || w == nil {
		p.mu.Unlock()
		return
	}
	p.noteProgress()
	p.binds--
	p.dev.outstanding.Add(-1)
	p.mu.Unlock()

	base := uint64(uintptr(unsafe.Pointer(&w.seg.Memory()[0])))
	p.conn.out.sendGranted(stream.Granted{Layout: w.seg.Layout(), Rkey: w.rkey, Base: base}, w.key, nil)
}

// granted receives a segment that the peer lets this end read.
func (p *verbsPair) granted(g stream.Granted) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.asked[g.Index] {
		return fmt.Errorf("%w: segment %d was not asked for", ErrProtocol, g.Index)
	}

	for len(p.segs) <= g.Index {
		p.segs = append(p.segs, stream.Granted{})
	}
	p.segs[g.Index] = g
	return nil
}
