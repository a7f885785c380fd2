package rdma

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// shmReader reads a peer's memory on this host directly. The peer's frames travel over a Unix
// socket; when a key names a segment that is not mapped yet, the chain goes over the socket and the
// segment is asked for beside it. Its descriptor comes back with SCM_RIGHTS, once.
//
// What a mapped segment lets a peer see: everything in that segment, offered or not, until it
// unmaps it. So it is bounded: only a process of the same user that holds the token gets one, only
// segments in which it could name a live key, and it can never write. Nothing is shared that a
// crashed peer could leave locked: keys are checked after the copy (see segment).
type shmReader struct {
	conn *conn
	segs atomic.Pointer[[]*shmSegment] // index = the peer's segment

	mu     sync.Mutex // protects asked, changes of segs, closing
	asked  map[int]bool
	closed bool
}

// shmSegment is a peer's segment as mapped here, read-only.
type shmSegment struct {
	mem           []byte
	stride, slots int
	readers       atomic.Int64 // reads under way; negative once it is to be unmapped
}

const shmGone = int64(-1) << 40

func newShmReader(c *conn) {
	s := &shmReader{conn: c, asked: map[int]bool{}}
	s.segs.Store(&[]*shmSegment{})
	var d directReader = s
	c.direct.Store(&d)
}

func (c *conn) shm() (*shmReader, bool) {
	d := c.direct.Load()
	if d == nil {
		return nil, false
	}
	s, ok := (*d).(*shmReader)
	return s, ok
}

func (s *shmReader) name() string { return "shm" }

func (s *shmReader) tick(now, limit time.Duration) {} // a copy ends by itself

// reachShm connects over the peer's Unix socket.
func (n *Node) reachShm(addr string, id nodeID, known bool) (*Peer, error) {
	if !known {
		return nil, fmt.Errorf("%w: the address names no node", ErrNotSupported)
	}
	c, err := dialUnix(n.ctx, socketName(id))
	if err != nil {
		return nil, fmt.Errorf("%w: not on this host: %w", ErrNotSupported, err)
	}
	if err := sameUser(c); err != nil {
		c.Close()
		return nil, fmt.Errorf("%w: %w", ErrNotSupported, err)
	}
	got, err := n.greet(c)
	if err != nil {
		return nil, err
	}
	if got != id {
		c.Close()
		return nil, fmt.Errorf("%w: another node answers for it", ErrNotSupported)
	}
	return n.adopt(c, addr, id, true)
}

// read copies the chain if all its segments are mapped.
func (s *shmReader) read(chain []Read, each func(int), done func(error)) bool {
	segs := *s.segs.Load()
	for i := range chain {
		at := keySegment(chain[i].Src.Key)
		if at >= len(segs) || segs[at] == nil {
			s.ask(at, chain[i].Src.Key)
			return false
		}
	}
	p := s.conn.peer
	start := p.node.now()
	var failed *ChainError
	for i := range chain {
		m := segs[keySegment(chain[i].Src.Key)]
		if m.readers.Add(1) < 0 { // closing: the stream ends the chain with the reason
			m.leave()
			return false
		}
		ok := m.copy(chain[i].Dst, chain[i].Src)
		m.leave()
		if !ok {
			if failed == nil {
				failed = &ChainError{Err: ErrNotOffered}
			}
			failed.Failed = append(failed.Failed, i)
			continue
		}
		tell(each, chain, i)
	}
	if failed != nil {
		p.finish(start, chain, failed, done)
	} else {
		p.finish(start, chain, nil, done)
	}
	return true
}

// copy takes the bytes of r, and tells whether they were offered all the while.
func (m *shmSegment) copy(dst []byte, r Remote) bool {
	slot := keySlot(r.Key)
	if slot >= m.slots || r.Key == 0 {
		return false
	}
	key, length := entryAt(m.mem, slot, m.stride)
	n := min(length.Load(), uint64(m.stride-headBytes))
	if key.Load() != r.Key || r.Offset > n || uint64(r.Length) > n-r.Offset {
		return false
	}
	at := slot*m.stride + headBytes + int(r.Offset)
	copy(dst, m.mem[at:at+int(r.Length)])
	var fence atomic.Uint64
	fence.Add(1) // the copy's loads come before the check
	return key.Load() == r.Key
}

// ask requests a segment once.
func (s *shmReader) ask(at int, key uint64) {
	s.mu.Lock()
	known := s.asked[at] || s.closed
	s.asked[at] = true
	s.mu.Unlock()
	if !known {
		s.conn.control(frame{kind: frameSegment, id: key})
	}
}

// take maps a granted segment, having checked that its owner cannot shrink it or let others write.
func (s *shmReader) take(fd int, g grantedBody) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&segmentSeals != segmentSeals {
		return fmt.Errorf("%w: segment without seals", ErrProtocol)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("segment: %w", err)
	}
	size, index := int(st.Size), g.index
	if need := roundUp(g.bytes(), pageBytes); size < need || size > max(need, roundUp(need, hugeBytes)) {
		return fmt.Errorf("%w: segment %+v in %d bytes", ErrProtocol, g, size)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	segs := *s.segs.Load()
	if !s.asked[index] || index < len(segs) && segs[index] != nil {
		return fmt.Errorf("%w: segment %d was not asked for", ErrProtocol, index)
	}
	if s.closed {
		return nil
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		s.conn.peer.node.cfg.Logger.Warn("segment not mapped: reads of it go over the socket", "err", err)
		return nil
	}
	grown := slices.Clone(segs)
	for len(grown) <= index {
		grown = append(grown, nil)
	}
	grown[index] = &shmSegment{mem: mem, stride: g.stride, slots: g.slots}
	s.segs.Store(&grown)
	return nil
}

// leave ends a read; the last one out unmaps a segment that is to go.
func (m *shmSegment) leave() {
	if m.readers.Add(-1) == shmGone {
		m.unmap()
	}
}

func (m *shmSegment) unmap() {
	if m.readers.CompareAndSwap(shmGone, 2*shmGone) {
		unix.Munmap(m.mem)
	}
}

func (s *shmReader) close(error) {
	s.mu.Lock()
	s.closed = true
	segs := *s.segs.Load()
	s.mu.Unlock()
	for _, m := range segs {
		if m != nil {
			m.readers.Add(shmGone)
			if m.readers.Load() == shmGone {
				m.unmap()
			}
		}
	}
}
