package stream

import (
	"sync/atomic"
	"time"

	"downbeat.dev/rdma/memory"
)

// Sink receives a Reader's input, without the lock. The data is valid during the call.
type Sink interface {
	// TakeMessage receives a message; id is its sender's.
	TakeMessage(id uint64, msg []byte) error
	// TakeFrame receives a frame that is neither a message nor an answer to a chain.
	TakeFrame(f Frame, body []byte) error
	// Calling is called before a chain's callback.
	Calling()
}

// Reader turns the bytes of a stream into frames, messages and filled chains. Bytes with a known destination are read
// directly into it. It belongs to one goroutine.
type Reader struct {
	fd     int  // unused with TLS
	unix   bool // descriptors may arrive with bytes
	sink   Sink
	chains *Chains

	rest    []byte // an incomplete frame: at most header and small body
	message collector
	landing landing

	vec   vector
	files files // only of a Unix socket
	now   *atomic.Int64
	heard atomic.Int64 // time of the last bytes
}

// NewReader returns a Reader of a socket, a Unix one if unix is set. fd is unused with TLS. now is a clock in ns that
// may lag by some ms; began is the time of a better one.
func NewReader(fd int, unix bool, chains *Chains, sink Sink, now *atomic.Int64, began time.Duration) *Reader {
	r := &Reader{fd: fd, unix: unix, chains: chains, sink: sink, now: now}
	r.heard.Store(int64(began))
	return r
}

// Heard returns the time of the last bytes, by the Reader's clock. Any goroutine may call it.
func (r *Reader) Heard() time.Duration { return time.Duration(r.heard.Load()) }

// Feed processes the next bytes of the stream. It does not keep b.
func (r *Reader) Feed(b []byte) error {
	for len(b) > 0 {
		n, err := r.feedSome(b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// feedSome processes the first bytes of b and returns their number.
func (r *Reader) feedSome(b []byte) (int, error) {
	// A message, a read's bytes or skipped bytes may have begun in an earlier piece; else a frame begins here.
	switch {
	case r.message.left > 0:
		n := copy(r.message.nextMemory(len(b)), b)
		return n, r.landed(n)
	case len(r.landing.gaps) > 0:
		n := copy(r.landing.gaps[0].b, b)
		return n, r.landed(n)
	case r.landing.skip > 0:
		n := min(r.landing.skip, len(b))
		r.landing.skip -= n
		r.completeLanding()
		return n, nil
	}
	return r.takeFrame(b)
}

// takeFrame processes one frame, or the part of it that has come, from b and returns the number of bytes used.
func (r *Reader) takeFrame(b []byte) (int, error) {
	used := 0
	whole := b

	// A frame whose header or body arrived in two parts is assembled in rest.
	if len(r.rest) > 0 || len(b) < HeaderBytes {
		used = min(len(b), max(0, HeaderBytes-len(r.rest)))
		r.rest = append(r.rest, b[:used]...)
		if len(r.rest) < HeaderBytes {
			return used, nil
		}
		whole = r.rest
	}

	// A message may be long: a complete one is passed on in place, others are collected, but not in rest.
	f, err := ParseFrame(whole)

	if err != nil {
		return 0, err
	}
	if f.Kind == KindMessage {
		return r.takeMessage(f, b, used)
	}

	// Of a data frame only the statuses are needed here; the bytes go directly to their chain's destinations.
	need := HeaderBytes + int(f.Body)
	if f.Kind == KindData {
		need = HeaderBytes + int(f.Count)
	}
	if len(r.rest) > 0 {
		more := min(len(b)-used, need-len(r.rest))
		r.rest = append(r.rest, b[used:used+more]...)
		used += more
		whole = r.rest
	}

	if len(whole) < need {
		if len(r.rest) == 0 {
			r.rest = append(r.rest, b...)
			used = len(b)
		}
		return used, nil
	}
	if len(r.rest) == 0 {
		used = need
	}

	err = r.dispatch(f, whole[HeaderBytes:need])
	r.rest = r.rest[:0]
	return used, err
}

func (r *Reader) dispatch(f Frame, body []byte) error {
	if f.Kind != KindData {
		return r.sink.TakeFrame(f, body)
	}

	if err := r.landing.beginLanding(r.chains.nextDue(), f, body); err != nil {
		return err
	}
	r.completeLanding()
	return nil
}

// takeMessage passes a complete message on in place, or begins to collect a long one. The first used bytes of b are
// its header, unless the header is in rest.
func (r *Reader) takeMessage(f Frame, b []byte, used int) (int, error) {
	if len(r.rest) == 0 {
		used = HeaderBytes
	}
	r.rest = r.rest[:0]
	if have := b[used:]; len(have) >= int(f.Body) {
		return used + int(f.Body), r.sink.TakeMessage(f.ID, have[:f.Body])
	}

	r.message.beginMessage(f.ID, int(f.Body))
	n := copy(r.message.nextMemory(len(b)-used), b[used:])
	return used + n, r.landed(n)
}

// landed counts n bytes that were read into placeBytes' destinations.
func (r *Reader) landed(n int) error {
	if r.message.left > 0 {
		if !r.message.countRead(n) {
			return nil
		}
		err := r.sink.TakeMessage(r.message.id, r.message.msg)
		r.message.releaseMessage()
		return err
	}

	r.landing.fillGaps(n, r.tellRead)
	r.completeLanding()
	return nil
}

// tellRead reports read i of the landing chain.
func (r *Reader) tellRead(i int) {
	if chain := r.landing.chain; chain.each != nil {
		r.sink.Calling()
		memory.Tell(chain.each, chain.reads, i)
	}
}

// completeLanding ends the landing chain once all its bytes have landed.
func (r *Reader) completeLanding() {
	if !r.landing.isComplete() {
		return
	}

	chain, err := r.landing.endLanding()
	// The end of a chain that was given up was already reported.
	if !chain.givenUp {
		r.sink.Calling()
	}
	r.chains.completeChain(chain, err)
}

// GiveUp ends an overdue chain: its bytes will be dropped as they arrive.
func (r *Reader) GiveUp(chain *Chain) {
	r.landing.giveUp(chain)
	chain.givenUp = true

	// The requester owns its memory again: late bytes must not be written there.
	for i := range chain.reads {
		chain.reads[i].Dst = nil
	}

	// The chain keeps its place in the table until its answer has arrived.
	done := chain.done
	chain.each, chain.done = nil, nil
	r.sink.Calling()
	r.chains.ended(chain.began, chain.reads, ErrGivenUp, done)
}

// placeBytes fills the vector with the destinations of the next bytes; it returns false if they are frames.
func (r *Reader) placeBytes() bool {
	r.vec.resetPieces()
	if r.message.left > 0 {
		r.vec.addPiece(r.message.nextMemory(1))
	} else {
		r.landing.addGaps(&r.vec)
	}
	return r.vec.n > 0
}
