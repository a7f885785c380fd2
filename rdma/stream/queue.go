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
	CopyMax    = 2048 // a reply up to this size is copied, not referenced
)

// queue holds the data waiting to be written, in order. Small data is copied into chunks, so that many frames leave
// in one write; bytes of offered buffers are only referenced.
type queue struct {
	runs   []run
	head   int // index in runs: earlier runs are written
	chunks [][]byte
	spare  [][]byte
	bytes  int           // in runs[head:]
	owned  int           // those of them outside offered buffers: the queue's memory cost
	copied *atomic.Int64 // bytes that the runs hold instead of offered buffers: see Writer.Detach
}

// run is a contiguous range of bytes. With a pin it belongs to an offered buffer; with a file, the descriptor is sent
// with the first byte (only on Unix sockets).
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

	// Extend the last run if the new bytes follow it in its chunk: fewer runs are fewer pieces of a write.
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

	// A chunk is free once its runs are written. Keep only a few: a queue that is never empty would otherwise keep
	// all of them.
	if len(q.chunks) == chunksKept {
		q.chunks = append(q.chunks[:0], q.chunks[1:]...)
	}
	q.chunks = append(q.chunks, fresh)
	return &q.chunks[len(q.chunks)-1]
}

// isCopied reports whether the run's bytes are in a chunk, without a descriptor.
func (r *run) isCopied() bool { return !r.pin.Holds() && r.file == nil }

// endsAt reports whether b's last byte is the last byte of chunk, so that b can grow with it.
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

// queueOffered queues bytes of an offered buffer; pin is released when they are written or discarded.
func (q *queue) queueOffered(b []byte, pin memory.Pin) {
	// A small reply is cheaper to copy than to reference, and its buffer is free at once.
	if len(b) <= CopyMax {
		q.copyIn(b)
		pin.Release()
		return
	}
	q.runs = append(q.runs, run{b: b, pin: pin})
	q.bytes += len(b)
}

// queueOwned queues b itself, which the caller hands over. file may be nil.
func (q *queue) queueOwned(b []byte, file *memory.Segment) {
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

// waiting returns the number of runs not yet written.
func (q *queue) waiting() int { return len(q.runs) - q.head }

// consume marks n bytes as written.
func (q *queue) consume(n int) {
	q.bytes -= n

	for n > 0 {
		r := &q.runs[q.head]

		// A descriptor leaves with the first byte of its run, even if the rest of the run is still waiting.
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

// dropFirst removes the first run.
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

	// Remove the written runs at the front when they are the larger half, so that no run moves often.
	if q.head >= 256 && q.head*2 >= len(q.runs) {
		q.runs = q.runs[:copy(q.runs, q.runs[q.head:])]
		q.head = 0
	}
}

// rewind makes an empty queue ready for reuse.
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

// discardAll discards everything.
func (q *queue) discardAll() {
	for q.head < len(q.runs) {
		q.dropFirst()
	}
	q.bytes, q.owned = 0, 0
	q.rewind()
}

// detach replaces the queued bytes of b by a copy, as long as all copies together have at most limit bytes. It
// returns false if they would have more.
func (q *queue) detach(b *memory.Buffer, limit int64) bool {
	for i := q.head; i < len(q.runs); i++ {
		r := &q.runs[i]
		if !r.pin.Is(b) {
			continue
		}

		// Raise the sum before comparing it, so that two streams that detach at once cannot both pass the bound.
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
