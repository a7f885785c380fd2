//go:build rdma && linux && cgo

package rdma

/*
#cgo LDFLAGS: -ldl
#cgo noescape db_post
#cgo nocallback db_post
#cgo noescape db_post_poll
#cgo nocallback db_post_poll
#cgo noescape db_poll
#cgo nocallback db_poll
#cgo nocallback db_arm
#cgo nocallback db_event
#cgo nocallback db_receive
#cgo nocallback db_received
#include <stdlib.h>
#include "verbs.h"
*/
import "C"

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"downbeat.dev/rdma/memory"
)

// verbsDevice is a node's RDMA device: one protection domain, one completion queue polled by the
// node's loop, and the queue pairs of its peers.
type verbsDevice struct {
	node   *Node
	name   string
	port   int
	gid    int // index in the port's table
	handle unsafe.Pointer
	info   C.db_info

	proof time.Duration // memory.ProofMax; tests change it before they connect

	outstanding atomic.Int64 // posted and not completed
	parts       atomic.Int64 // reads of chains under way that complete by themselves
	regions     atomic.Pointer[[]verbsRegion]

	mu       sync.Mutex // protects pairs, offers and changes of regions
	pairs    map[uint32]*verbsPair
	byNumber map[uint32]*verbsPair // by queue pair number
	doomed   []doomedPair          // to be given up by the loop
	offers   map[*conn]*verbsPair  // made by a connector, not answered yet
	serial   uint32

	// What follows is owned by the loop.
	spare    []*[64]C.db_wc
	last     *verbsPair   // found by pair
	pumping  []*verbsPair // pairs to be pumped when poll is through
	ahead    *[64]C.db_wc // completions that a post brought along
	aheadLen int
	depth    int // calls of poll under way

	armed   bool          // an event was asked for and has not come
	typical time.Duration // of a chain, from posting
}

// verbsRegion is a registered segment, found by the address of what lies in it.
type verbsRegion struct {
	base, size uintptr
	lkey, rkey uint32
	mr         unsafe.Pointer
}

// verbsError is a verbs call that failed.
type verbsError struct {
	Op   string
	Code unix.Errno
}

func (e *verbsError) Error() string { return e.Op + ": " + e.Code.Error() }
func (e *verbsError) Unwrap() error { return e.Code }

// openVerbs opens the device that belongs to the node's listening address.
func openVerbs(n *Node) (device, error) {
	if err := loadVerbs(); err != nil {
		return nil, err
	}
	place, err := placeFor(n.tcp.Addr().(*net.TCPAddr).IP)
	if err != nil {
		return nil, err
	}

	d := &verbsDevice{node: n, name: place.device, port: place.port, gid: place.gid, pairs: map[uint32]*verbsPair{}, offers: map[*conn]*verbsPair{},
		byNumber: map[uint32]*verbsPair{}, proof: memory.ProofMax}
	d.regions.Store(&[]verbsRegion{})

	name := C.CString(place.device)
	defer C.free(unsafe.Pointer(name))
	rc := C.db_open(name, C.int(place.port), C.int(place.gid), &d.handle, &d.info)
	if err := checkMemory(rc, "open device "+place.device, C.DB_RECV_BYTES*C.DB_RECV_COUNT); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSupported, err)
	}

	n.pool.RegisterWith(d)
	return d, nil
}

// Register makes a new segment known to the device. The pool's lock is held.
func (d *verbsDevice) Register(s *memory.Segment) error {
	mem := s.Memory()
	r := verbsRegion{base: uintptr(unsafe.Pointer(&mem[0])), size: uintptr(len(mem))}

	var lkey, rkey C.uint32_t
	rc := C.db_register(d.handle, C.uint64_t(r.base), C.uint64_t(r.size), &r.mr, &lkey, &rkey)
	if err := checkMemory(rc, "register memory", len(mem)); err != nil {
		return err
	}
	r.lkey, r.rkey = uint32(lkey), uint32(rkey)

	// Readers find regions without a lock, so each change makes a new sorted list.
	d.mu.Lock()
	defer d.mu.Unlock()
	grown := append(slices.Clone(*d.regions.Load()), r)
	slices.SortFunc(grown, func(a, b verbsRegion) int {
		if a.base < b.base {
			return -1
		}
		return 1
	})
	d.regions.Store(&grown)
	return nil
}

// Forget undoes Register.
func (d *verbsDevice) Forget(s *memory.Segment) {
	base := uintptr(unsafe.Pointer(&s.Memory()[0]))

	d.mu.Lock()
	defer d.mu.Unlock()
	kept := slices.DeleteFunc(slices.Clone(*d.regions.Load()), func(r verbsRegion) bool {
		if r.base == base {
			C.db_deregister(r.mr)
		}
		return r.base == base
	})
	d.regions.Store(&kept)
}

// region finds the registered segment that holds b, or nil.
func (d *verbsDevice) region(b []byte) *verbsRegion {
	if len(b) == 0 {
		return nil
	}
	// Of the segments that begin at or before b, the last is the only one that can hold it.
	at := uintptr(unsafe.Pointer(&b[0]))
	all := *d.regions.Load()

	lo, hi := 0, len(all)
	for lo < hi {
		mid := (lo + hi) / 2
		if all[mid].base <= at {
			lo = mid + 1
		} else {
			hi = mid
		}
	}

	if lo == 0 || at+uintptr(len(b)) > all[lo-1].base+all[lo-1].size {
		return nil
	}
	return &all[lo-1]
}

func (d *verbsDevice) channel() int { return int(C.db_channel(d.handle)) }
func (d *verbsDevice) busy() bool   { return d.outstanding.Load() > 0 }

// pollingTime is how long polling is worth it: twice what a chain takes, if that is short.
func (d *verbsDevice) pollingTime() time.Duration {
	// Chains that take longer than the limit are awaited by event, after a short spin.
	limit := d.node.cfg.Spin
	if d.typical > limit {
		return limit / 8
	}
	return min(limit, max(limit/8, 2*d.typical))
}

// noteChainTime counts a chain's time.
func (d *verbsDevice) noteChainTime(t time.Duration) { d.typical += (t - d.typical) / 8 }

// armEvent asks for an event at the next completion. Only the loop calls it.
func (d *verbsDevice) armEvent() {
	if !d.armed {
		d.armed = C.db_arm(d.handle) == 0
	}
}

// takeEvent takes the event that arm asked for. Only the loop calls it.
func (d *verbsDevice) takeEvent() {
	C.db_event(d.handle)
	d.armed = false
}

// giveUpDoomed gives up the pairs that were doomed elsewhere. Only the loop calls it.
func (d *verbsDevice) giveUpDoomed() {
	d.mu.Lock()
	doomed := d.doomed
	d.doomed = nil
	d.mu.Unlock()
	for _, v := range doomed {
		v.pair.failPair(v.why, true)
	}
}

// closeDevice frees the device; the node's loops have ended and its peers are gone.
func (d *verbsDevice) closeDevice() {
	for _, r := range *d.regions.Load() {
		C.db_deregister(r.mr)
	}
	d.regions.Store(&[]verbsRegion{})
	C.db_close(d.handle)
}

func statusText(status uint32) string { return C.GoString(C.db_status(C.uint32_t(status))) }
