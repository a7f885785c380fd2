package stream

import (
	"sync/atomic"
	"time"

	"downbeat.dev/rdma/memory"
)

// Sink is told of what a Reader takes in, without the lock. What it is given is valid during the call.
type Sink interface {
	// TakeMessage gets a message; id is its sender's.
	TakeMessage(id uint64, msg []byte) error
	// TakeFrame gets a frame that is neither a message nor an answer to a chain.
	TakeFrame(f Frame, body []byte) error
	// Calling is told before a chain's callback.
	Calling()
}

// Reader turns the bytes of a stream into frames, messages and filled chains. Bytes whose place is known are read into
// that place. It belongs to one goroutine.
type Reader struct {
	fd     int  // unused with TLS
	unix   bool // descriptors may come along
	sink   Sink
	chains *Chains

	rest    []byte // a frame that has not come in whole: at most header and small body
	message collector
	landing landing

	vec   vector
	files files // only of a Unix socket
	now   *atomic.Int64
	heard atomic.Int64 // when the last bytes came
}

// NewReader returns a Reader of a socket, a Unix one if unix is set. fd is unused with TLS. now is a clock in ns that may
// lag by some ms; began is what a better one says.
func NewReader(fd int, unix bool, chains *Chains, sink Sink, now *atomic.Int64, began time.Duration) *Reader {
	r := &Reader{fd: fd, unix: unix, chains: chains, sink: sink, now: now}
	r.heard.Store(int64(began))
	return r
}

// Heard is when bytes last came, by the Reader's clock. Any goroutine may call it.
func (r *Reader) Heard() time.Duration { return time.Duration(r.heard.Load()) }

// Feed takes in bytes of the stream that follow what came before. b is not kept.
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

// feedSome takes in the first bytes of b and returns how many.
func (r *Reader) feedSome(b []byte) (int, error) {
	switch {
	case r.message.left > 0:
		n := copy(r.message.tail(len(b)), b)
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

// takeFrame takes one frame, or the piece of it that came, from b and returns the bytes used.
func (r *Reader) takeFrame(b []byte) (int, error) {
	used := 0
	whole := b

	// A frame whose header or body came in two parts is put together in rest.
	if len(r.rest) > 0 || len(b) < HeaderBytes {
		used = min(len(b), max(0, HeaderBytes-len(r.rest)))
		r.rest = append(r.rest, b[:used]...)
		if len(r.rest) < HeaderBytes {
			return used, nil
		}
		whole = r.rest
	}

	// A message may be long: it is handed on in place where it is whole, and else collected, but not in rest.
	f, err := ParseFrame(whole)

	if err != nil {
		return 0, err
	}
	if f.Kind == KindMessage {
		return r.takeMessage(f, b, used)
	}

	// Of a data frame only the statuses are wanted here; the bytes land where their chain says.
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

// takeMessage hands a whole message on in place, or begins to collect a long one. The first used bytes of b are its
// header's, unless that lies in rest.
func (r *Reader) takeMessage(f Frame, b []byte, used int) (int, error) {
	if len(r.rest) == 0 {
		used = HeaderBytes
	}
	r.rest = r.rest[:0]
	if have := b[used:]; len(have) >= int(f.Body) {
		return used + int(f.Body), r.sink.TakeMessage(f.ID, have[:f.Body])
	}

	r.message.beginMessage(f.ID, int(f.Body))
	n := copy(r.message.tail(len(b)-used), b[used:])
	return used + n, r.landed(n)
}

// landed accounts n bytes that lie where placeBytes said.
func (r *Reader) landed(n int) error {
	if r.message.left > 0 {
		if !r.message.got(n) {
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

// tellRead tells of read i of the chain that is landing.
func (r *Reader) tellRead(i int) {
	if chain := r.landing.chain; chain.each != nil {
		r.sink.Calling()
		memory.Tell(chain.each, chain.reads, i)
	}
}

// completeLanding ends the chain that is landing, if all its bytes are there.
func (r *Reader) completeLanding() {
	if !r.landing.isComplete() {
		return
	}

	chain, err := r.landing.endLanding()
	// Nobody is told of the end of a chain that was given up: that was told of then.
	if !chain.givenUp {
		r.sink.Calling()
	}
	r.chains.completeChain(chain, err)
}

// GiveUp ends a chain that is overdue: its bytes will be dropped as they come.
func (r *Reader) GiveUp(chain *Chain) {
	r.landing.giveUp(chain)
	chain.givenUp = true

	// The reader's memory is its own again: nothing may write there when the bytes come.
	for i := range chain.reads {
		chain.reads[i].Dst = nil
	}

	// The chain keeps its place in the table until its answer has come and gone.
	done := chain.done
	chain.each, chain.done = nil, nil
	r.sink.Calling()
	r.chains.ended(chain.began, chain.reads, ErrGivenUp, done)
}

// placeBytes fills the vector with where the next bytes go, and reports false when they are frames.
func (r *Reader) placeBytes() bool {
	r.vec.resetPieces()
	if r.message.left > 0 {
		r.vec.addPiece(r.message.tail(1))
	} else {
		r.landing.want(&r.vec)
	}
	return r.vec.n > 0
}
