package backend

import (
	"sync"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/model"
	"downbeat.dev/rdma"
)

// heldSlot is a slot whose outputs peers may read.
type heldSlot struct {
	gpu    *gpu
	slot   *device.Slot
	memory *rdma.Buffer
	remote rdma.Remote
	begin  int // offset of the slot's memory in the buffer
	lease  time.Duration
	rows   []rowKey // of all its rows; released ones are no longer in holds
	left   int      // rows not released yet; guarded by holds.mu
	timer  *time.Timer
}

// holds are the held outputs of a backend.
type holds struct {
	mu     sync.Mutex
	rows   map[rowKey]*heldSlot
	closed bool
	wait   sync.WaitGroup // slots being freed and made

	held, refused, expired uint64 // rows; guarded by mu
}

// countRows returns the counts of rows that were to be held.
func (q *holds) countRows() (held, refused, expired uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.held, q.refused, q.expired
}

// holdRow adds a row, and appends the locations of its outputs; outputs that are not to be held are appended to
// inline.
func (h *heldSlot) holdRow(o *order, it *item, places []model.Descriptor, inline [][]byte) ([]model.Descriptor, [][]byte) {
	first := rowKey{}

	for k := range o.model.Outputs {
		// A key of 0 means that the output follows: the frontend needs it itself.
		if it.hold&(1<<k) == 0 {
			places = append(places, model.Descriptor{Length: uint32(o.model.Outputs[k].Bytes)})
			inline = append(inline, o.run.OutputRow(o.model, k, int(it.row)))
			continue
		}

		from, to := o.run.OutputPlace(o.model, k, int(it.row))
		d := model.Descriptor(h.remote).Part(h.begin+from, to-from)

		// The first held output identifies the row: a release names no other.
		if first.key == 0 {
			first = rowKey{d.Key, d.Offset}
		}
		places = append(places, d.In(h.gpu.backend.peers.own.Load()))
	}

	if first.key != 0 {
		h.rows = append(h.rows, first)
	}

	return places, inline
}

// startLease lets frontends release the rows of a slot. They are told of the rows only after it.
func (q *holds) startLease(h *heldSlot) {
	// When the backend is closing, nobody is left to read from it.
	q.mu.Lock()
	h.left = len(h.rows)
	closed := q.closed
	if !closed {
		if q.rows == nil {
			q.rows = map[rowKey]*heldSlot{}
		}
		for _, r := range h.rows {
			q.rows[r] = h
		}
		q.held += uint64(h.left)
		h.timer = time.AfterFunc(h.lease, func() { q.expireLease(h) })
	}

	q.mu.Unlock()

	if closed || len(h.rows) == 0 {
		h.freeHeldSlot()
	}
}

// releaseRow handles a frontend's release of a row. A row that is not held, or not any more, is no error.
func (q *holds) releaseRow(r rowKey) {
	q.mu.Lock()
	h := q.rows[r]
	if h == nil {
		q.mu.Unlock()
		return
	}
	// Counted under the lock, so that the lease's end and the last release do not both free the slot.
	delete(q.rows, r)
	h.left--
	last := h.left == 0
	if last {
		q.wait.Add(1)
	}

	q.mu.Unlock()

	// The data plane's goroutine must not wait for readers.
	if last {
		h.timer.Stop()
		go func() {
			defer q.wait.Done()
			h.freeHeldSlot()
		}()
	}
}

// expireLease ends a slot's lease.
func (q *holds) expireLease(h *heldSlot) {
	// Of the timer, the last release and closeHolds, the one that finds rows left frees the slot.
	q.mu.Lock()
	ours := h.left > 0 && !q.closed
	if ours {
		q.expired += uint64(h.left)
		h.left = 0
		for _, r := range h.rows {
			delete(q.rows, r)
		}
		q.wait.Add(1)
	}

	q.mu.Unlock()
	if ours {
		defer q.wait.Done()
		h.freeHeldSlot()
	}
}

// freeHeldSlot ends the reads of a slot and returns it to batches.
func (h *heldSlot) freeHeldSlot() {
	// Reads in progress end first: they must not see what later batches write.
	h.memory.Withdraw()
	h.gpu.mu.Lock()
	h.gpu.heldNow--
	h.gpu.mu.Unlock()
	h.gpu.freeSlots(h.slot, nil)
}

func (q *holds) noteRefused(rows uint64) {
	q.mu.Lock()
	q.refused += rows
	q.mu.Unlock()
}

// closeHolds frees all held slots.
func (q *holds) closeHolds() {
	// From here on nothing new is held, and timers find nothing to do.
	q.mu.Lock()
	q.closed = true
	all := map[*heldSlot]bool{}

	for _, h := range q.rows {
		all[h] = true
		h.left = 0
	}
	clear(q.rows)
	q.mu.Unlock()

	for h := range all {
		h.timer.Stop()
		h.freeHeldSlot()
	}
	q.wait.Wait()
}
