package stream

import (
	"bytes"
	"slices"
	"sync/atomic"

	"downbeat.dev/rdma/memory"
)

const (
	runsMax    = 64 // of one write
	chunkBytes = 32 << 10
	chunksKept = 4
	CopyMax    = 2048 // a reply up to this size is copied rather than referred to
)

// queue is what waits to be written, in order. Small things are copied into chunks, so that many frames leave in one
// write; bytes of offered buffers are only referred to.
type queue struct {
	runs   []run
	head   int // of runs: those before it are written
	chunks [][]byte
	spare  [][]byte
	bytes  int           // in runs[head:]
	owned  int           // of them, those that are not an offered buffer's: what the queue costs in memory
	copied *atomic.Int64 // bytes that the runs hold in place of offered buffers: see Writer.Detach
}

// run is bytes that lie together. With a pin they belong to an offered buffer; with a file, its descriptor travels
// beside the first byte (only on Unix sockets).
type run struct {
	b      []byte
	pin    memory.Pin
	file   *memory.Segment
	copied int // bytes that queue.copied counts for it
}

// reserve returns n ≤ chunkBytes contiguous bytes at the queue's end for the caller to fill.
func (q *queue) reserve(n int) []byte {
	chunk := q.chunkFor(n)
	at := len(*chunk)
	*chunk = (*chunk)[:at+n]
	q.bytes += n
	q.owned += n

	// What follows the last run in its chunk makes that run longer: fewer runs are fewer pieces of a write.
	if k := len(q.runs) - 1; k >= q.head && at > 0 && q.runs[k].isCopied() && endsAt(q.runs[k].b, (*chunk)[:at]) {
		q.runs[k].b = q.runs[k].b[:len(q.runs[k].b)+n]
	} else {
		q.runs = append(q.runs, run{b: (*chunk)[at:]})
	}
	return (*chunk)[at : at+n]
}

// chunkFor returns the last chunk, or a new one if that has no room for n bytes.
func (q *queue) chunkFor(n int) *[]byte {
	last := len(q.chunks) - 1
	if last >= 0 && cap(q.chunks[last])-len(q.chunks[last]) >= n {
		return &q.chunks[last]
	}

	var fresh []byte
	if k := len(q.spare); k > 0 {
		fresh, q.spare = q.spare[k-1], q.spare[:k-1]
	} else {
		fresh = make([]byte, 0, chunkBytes)
	}

	// A chunk is free once its runs are written. Only a few are kept for later: a queue that is never
	// empty would keep all that ever went through it.
	if len(q.chunks) == chunksKept {
		q.chunks = append(q.chunks[:0], q.chunks[1:]...)
	}
	q.chunks = append(q.chunks, fresh)
	return &q.chunks[len(q.chunks)-1]
}

// isCopied tells whether the run's bytes lie in a chunk and nothing travels beside them.
func (r *run) isCopied() bool { return !r.pin.Holds() && r.file == nil }

// endsAt tells whether b's last byte is the last byte of chunk, so that b can grow with it.
func endsAt(b, chunk []byte) bool {
	return len(b) > 0 && &b[len(b)-1] == &chunk[len(chunk)-1]
}

// copyIn queues a copy of b.
func (q *queue) copyIn(b []byte) {
	for len(b) > 0 {
		n := min(len(b), chunkBytes)
		copy(q.reserve(n), b[:n])
		b = b[n:]
	}
}

// refer queues bytes of an offered buffer; pin is released when they are written or given up.
func (q *queue) refer(b []byte, pin memory.Pin) {
	// A small reply is cheaper to copy than to refer to, and its buffer is the owner's again at once.
	if len(b) <= CopyMax {
		q.copyIn(b)
		pin.Release()
		return
	}
	q.runs = append(q.runs, run{b: b, pin: pin})
	q.bytes += len(b)
}

// own queues b itself, which the caller gives away. file may be nil.
func (q *queue) own(b []byte, file *memory.Segment) {
	q.runs = append(q.runs, run{b: b, file: file})
	q.bytes += len(b)
	q.owned += len(b)
}

// putFirst queues b itself before everything else.
func (q *queue) putFirst(b []byte) {
	q.runs = slices.Insert(q.runs, q.head, run{b: b})
	q.bytes += len(b)
	q.owned += len(b)
}

// waiting is the number of runs not yet written.
func (q *queue) waiting() int { return len(q.runs) - q.head }

// consume marks n bytes as written.
func (q *queue) consume(n int) {
	q.bytes -= n

	for n > 0 {
		r := &q.runs[q.head]

		// A descriptor leaves with the first byte of its run, whatever else of the run is still to come.
		r.file = nil
		if !r.pin.Holds() {
			q.owned -= min(n, len(r.b))
		}

		if n < len(r.b) {
			r.b = r.b[n:]
			return
		}

		n -= len(r.b)
		q.dropFirst()
	}

	if q.head == len(q.runs) {
		q.rewind()
	}
}

// dropFirst forgets the first run.
func (q *queue) dropFirst() {
	r := &q.runs[q.head]
	if r.pin.Holds() {
		r.pin.Release()
	}
	if r.copied > 0 {
		q.copied.Add(-int64(r.copied))
	}

	*r = run{}
	q.head++

	// The written runs at the front go when they are the larger half, so that no run moves often.
	if q.head >= 256 && q.head*2 >= len(q.runs) {
		q.runs = q.runs[:copy(q.runs, q.runs[q.head:])]
		q.head = 0
	}
}

// rewind makes an emptied queue ready for reuse.
func (q *queue) rewind() {
	q.runs, q.head = q.runs[:0], 0

	for i, c := range q.chunks {
		if len(q.spare) < chunksKept {
			q.spare = append(q.spare, c[:0])
		}
		q.chunks[i] = nil
	}
	q.chunks = q.chunks[:0]
}

// discardAll gives up everything.
func (q *queue) discardAll() {
	for q.head < len(q.runs) {
		q.dropFirst()
	}
	q.bytes, q.owned = 0, 0
	q.rewind()
}

// detach replaces the queued bytes of b by a copy, as long as all copies together have at most limit bytes. It
// reports false if they would have more.
func (q *queue) detach(b *memory.Buffer, limit int64) bool {
	for i := q.head; i < len(q.runs); i++ {
		r := &q.runs[i]
		if !r.pin.Is(b) {
			continue
		}

		// The sum is raised before it is compared: two streams that detach at once cannot both pass the bound.
		if q.copied.Add(int64(len(r.b))) > limit {
			q.copied.Add(-int64(len(r.b)))
			return false
		}

		pin := r.pin
		r.b, r.pin, r.copied = bytes.Clone(r.b), memory.Pin{}, len(r.b)
		q.owned += len(r.b)
		pin.Release()
	}
	return true
}
