package rdma

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"downbeat.dev/rdma/memory"
	"downbeat.dev/rdma/stream"
)

// shmReader reads a peer's memory on this host directly. The peer's frames travel over a Unix socket. When a key
// names a segment that is not mapped yet, the chain goes over the socket and the segment is requested at the same
// time. Its descriptor comes back with SCM_RIGHTS, once.
//
// A process that maps a segment sees all of it (memory.Mapped). So a segment is given only to a process of the same
// user that holds the token, and only if it has named a live key in it.
type shmReader struct {
	conn *conn
	segs atomic.Pointer[[]*memory.Mapped] // by the peer's segment number; nil if not mapped

	mu     sync.Mutex // guards asked, changes of segs, closing
	asked  map[int]bool
	closed bool
}

func newShmReader(c *conn) *shmReader {
	s := &shmReader{conn: c, asked: map[int]bool{}}
	s.segs.Store(&[]*memory.Mapped{})
	return s
}

func (s *shmReader) name() string { return "shm" }

// Copies within one host do not need these: they end by themselves, and messages use the socket.
func (s *shmReader) sendDirect(uint64, [][]byte, int) bool { return false }
func (s *shmReader) broken(string)                         {}
func (s *shmReader) giveUp(time.Duration)                  {}
func (s *shmReader) tick(time.Duration, time.Duration)     {}

// giveSegment sends a segment's descriptor.
func (s *shmReader) giveSegment(seg *memory.Segment, key uint64) error {
	s.conn.out.sendGranted(stream.Granted{Layout: seg.Layout()}, key, seg)
	return nil
}

// granted receives a segment's descriptor.
func (s *shmReader) granted(g stream.Granted) error {
	fd, ok := s.conn.in.frames.TakeFile()
	if !ok {
		return fmt.Errorf("%w: segment granted without its descriptor", ErrProtocol)
	}
	defer unix.Close(fd)
	return s.takeSegment(fd, g.Layout)
}

// readDirect copies the chain if all its segments are mapped.
func (s *shmReader) readDirect(r stream.Request) bool {
	// A chain is read in one way: with one unmapped segment it goes over the socket as a whole.
	segs := *s.segs.Load()
	for i := range r.Reads {
		src := r.Reads[i].Src
		if at := src.Segment(); at >= len(segs) || segs[at] == nil {
			s.askSegment(at, src.Key)
			return false
		}
	}

	p := s.conn.peer
	began := p.node.now()
	var refusals memory.Refusals
	for i := range r.Reads {
		m := segs[r.Reads[i].Src.Segment()]
		if !m.Enter() { // closing: the stream ends the chain with the reason
			return false
		}
		ok := m.Copy(r.Reads[i].Dst, r.Reads[i].Src)
		m.Leave()

		if ok {
			memory.Tell(r.Each, r.Reads, i)
		} else {
			refusals.Add(i)
		}
	}

	p.finishChain(began, r.Reads, refusals.Err(), r.Done)
	return true
}

// askSegment requests a segment once.
func (s *shmReader) askSegment(at int, key uint64) {
	s.mu.Lock()
	known := s.asked[at] || s.closed
	s.asked[at] = true
	s.mu.Unlock()
	if !known {
		s.conn.out.sendFrame(stream.Frame{Kind: stream.KindSegment, ID: key})
	}
}

// takeSegment maps a granted segment. One that this host cannot map is read over the socket.
func (s *shmReader) takeSegment(fd int, l memory.Layout) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	// A peer sends a descriptor only once, for a requested segment: another one could replace memory that is being
	// read.
	segs := *s.segs.Load()
	if !s.asked[l.Index] || l.Index < len(segs) && segs[l.Index] != nil {
		return fmt.Errorf("%w: segment %d was not asked for", ErrProtocol, l.Index)
	}

	if s.closed {
		return nil
	}

	mapped, err := memory.Map(fd, l)
	if errors.Is(err, ErrProtocol) {
		return err
	}
	if err != nil {
		s.conn.peer.node.cfg.Logger.Warn("segment not mapped: reads of it go over the socket", "err", err)
		return nil
	}

	// Readers look up segments without the lock, so the list is replaced.
	grown := slices.Clone(segs)
	for len(grown) <= l.Index {
		grown = append(grown, nil)
	}
	grown[l.Index] = mapped
	s.segs.Store(&grown)
	return nil
}

func (s *shmReader) closeDirect(error) {
	s.mu.Lock()
	s.closed = true
	segs := *s.segs.Load()
	s.mu.Unlock()

	for _, m := range segs {
		if m != nil {
			m.Unmap()
		}
	}
}
