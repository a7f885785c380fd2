package rdma

import (
	"fmt"
	"sync"

	"downbeat.dev/rdma/memory"
	"downbeat.dev/rdma/stream"
)

// sender is the writing side of a conn: frames leave in the order in which they were queued. Any goroutine may call
// its methods; those whose comment says so need mu held.
type sender struct {
	mu     sync.Mutex // the stream's lock: guards frames, the conn's outbox and the chains of its reads
	frames *stream.Writer
}

// sendFrame sends a frame without a body.
func (s *sender) sendFrame(f stream.Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()

	// Otherwise the answers to a peer that requests but does not read would pile up here.
	if waiting := s.frames.Bytes(); waiting > stream.QueueMax {
		s.frames.Fail(fmt.Errorf("%w: %d bytes wait for the peer", ErrTooLarge, waiting))
	}
	if s.frames.Err() == nil {
		s.frames.Copy(f)
		s.frames.Flush()
	}
}

// sendSetup queues a set-up frame of verbs.
func (s *sender) sendSetup(setup stream.Setup) {
	s.mu.Lock()
	if s.frames.Err() == nil {
		setup.Append(s.frames.Reserve(stream.HeaderBytes + stream.SetupBytes)[:0])
		s.frames.Flush()
	}
	s.mu.Unlock()
}

// sendGranted queues the right to read a segment, with the descriptor of file if that is not nil.
func (s *sender) sendGranted(g stream.Granted, key uint64, file *memory.Segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frames.Err() != nil {
		return
	}
	if s.frames.Runs() > stream.ReadsMax {
		s.frames.Fail(fmt.Errorf("%w: more than %d answers not taken", ErrTooLarge, stream.ReadsMax))
		return
	}
	s.frames.Own(g.Append(make([]byte, 0, stream.HeaderBytes+stream.GrantedBytes), key), file)
	s.frames.Flush()
}

// answerRead queues the answer to a READ frame. body contains its reads, with small bytes in short ones. The answer
// is the statuses, then the offered bytes, by reference.
func (s *sender) answerRead(pool *memory.Pool, f stream.Frame, body []byte, small int) error {
	n := int(f.Count)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.roomFor(n, small); err != nil {
		return err
	}

	// The header comes first with room for the statuses; its length is known once every key has been looked up.
	head := s.frames.Reserve(stream.HeaderBytes + n)
	sent := uint32(n)
	for i := range n {
		r := stream.ParseRemote(body[i*stream.RemoteBytes:])
		if pin, ok := pool.Find(r); !ok || !s.queueOffered(pin, r) {
			head[stream.HeaderBytes+i] = stream.StatusNotOffered
			continue
		}
		head[stream.HeaderBytes+i] = stream.StatusOK
		sent += r.Length
	}

	stream.Frame{Body: sent, Kind: stream.KindData, Count: f.Count, ID: f.ID}.Append(head[:0])
	return nil
}

// queueOffered queues the bytes of r, which pin holds. mu is held.
func (s *sender) queueOffered(pin memory.Pin, r Remote) bool {
	if !r.Lent() {
		s.frames.Refer(pin.Bytes(r), pin)
		return true
	}

	// Lent bytes that have gone would make a system call end the stream, and TLS crash the process, so they leave as
	// a copy.
	defer pin.Release()
	if s.frames.Owned()+int(r.Length) > stream.OwnedMax {
		return false
	}
	b := make([]byte, r.Length)
	if !pin.Copy(b, r) {
		return false
	}
	if len(b) > 0 {
		s.frames.Own(b, nil)
	}
	return true
}

// roomFor refuses a peer that requests more than it takes: reads, or copied bytes of answers. mu is held.
func (s *sender) roomFor(reads, small int) error {
	if s.frames.Runs()+reads > stream.ReadsMax {
		return fmt.Errorf("%w: more than %d reads asked and not taken", ErrTooLarge, stream.ReadsMax)
	}

	if owned := s.frames.Owned(); owned+small > stream.OwnedMax {
		return fmt.Errorf("%w: %d bytes of short reads asked, %d bytes not taken", ErrTooLarge, small, owned)
	}
	return nil
}

// cork holds back queued frames, so that they leave in one call.
func (s *sender) cork() {
	s.mu.Lock()
	s.frames.Cork()
	s.mu.Unlock()
}

// uncork releases the frames held back by cork, and returns the reason if the stream has ended.
func (s *sender) uncork() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frames.Uncork()
	return s.frames.Err()
}

// flushQueued writes as much of the queue as the socket takes.
func (s *sender) flushQueued() {
	s.mu.Lock()
	s.frames.Flush()
	s.mu.Unlock()
}

// goOn continues writing when the socket is writable again.
func (s *sender) goOn() {
	s.mu.Lock()
	s.frames.Writable()
	s.mu.Unlock()
}

// detach replaces queued bytes of b by a copy, or cuts off the peer if too much has been copied already.
func (s *sender) detach(b *Buffer) {
	s.mu.Lock()
	s.frames.Detach(b, copiedMax)
	s.mu.Unlock()
}

// owed returns how many copied bytes wait for the peer; 0 once it has been cut off.
func (s *sender) owed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frames.Err() != nil {
		return 0
	}
	return s.frames.Owned()
}

// failWith ends the stream for err. Its reader sees that, and drops the conn.
func (s *sender) failWith(err error) {
	s.mu.Lock()
	s.frames.Fail(err)
	s.mu.Unlock()
}

// endWith closes the stream for err if it has no reader.
func (s *sender) endWith(err error) {
	s.mu.Lock()
	s.frames.End(err)
	s.mu.Unlock()
}
