package rdma

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// output is what waits to be written to a peer, in order. Small things are copied into chunks, so
// that many frames leave in one write; bytes of offered buffers are only referred to. conn.mu
// protects it; the writer (conn.writing) alone uses iov, msg and header.
type output struct {
	segs   []outSeg
	head   int // of segs: those before it are written
	chunks [][]byte
	spare  [][]byte
	bytes  int // in segs[head:]

	iov    [iovMax]unix.Iovec
	hdr    unix.Msghdr
	header [headerBytes]byte
	oob    []byte
}

// outSeg is a run of bytes. With a pin they belong to an offered buffer; with a file, its
// descriptor travels beside the first byte (only on Unix sockets).
type outSeg struct {
	b    []byte
	pin  *Buffer
	file *segment
}

const (
	iovMax     = 64
	chunkBytes = 32 << 10
	chunksKept = 4
	copyMax    = 2048    // a reply up to this size is copied rather than referred to
	writeBound = 1 << 20 // bytes one call to flush writes before the loop turns to the next peer
)

// reserve returns n ≤ chunkBytes contiguous bytes at the queue's end for the caller to fill.
func (o *output) reserve(n int) []byte {
	last := len(o.chunks) - 1
	if last < 0 || cap(o.chunks[last])-len(o.chunks[last]) < n {
		var c []byte
		if k := len(o.spare); k > 0 {
			c, o.spare = o.spare[k-1], o.spare[:k-1]
		} else {
			c = make([]byte, 0, chunkBytes)
		}
		o.chunks = append(o.chunks, c)
		last++
	}
	c := o.chunks[last]
	at := len(c)
	c = c[:at+n]
	o.chunks[last] = c
	o.bytes += n
	if k := len(o.segs) - 1; k >= o.head && o.segs[k].pin == nil && o.segs[k].file == nil && at > 0 && endsAt(o.segs[k].b, c[:at]) {
		o.segs[k].b = o.segs[k].b[:len(o.segs[k].b)+n]
	} else {
		o.segs = append(o.segs, outSeg{b: c[at:]})
	}
	return c[at : at+n]
}

// endsAt tells whether b's last byte is the last byte of chunk, so that b can grow with it.
func endsAt(b, chunk []byte) bool {
	return len(b) > 0 && &b[len(b)-1] == &chunk[len(chunk)-1]
}

// copyIn queues a copy of b.
func (o *output) copyIn(b []byte) {
	for len(b) > 0 {
		n := min(len(b), chunkBytes)
		copy(o.reserve(n), b[:n])
		b = b[n:]
	}
}

// refer queues bytes of an offered buffer; pin is released when they are written or given up.
func (o *output) refer(b []byte, pin *Buffer) {
	if len(b) <= copyMax {
		o.copyIn(b)
		pin.unpin()
		return
	}
	o.segs = append(o.segs, outSeg{b: b, pin: pin})
	o.bytes += len(b)
}

// waiting is the number of runs not yet written.
func (o *output) waiting() int { return len(o.segs) - o.head }

// consume marks n bytes as written.
func (o *output) consume(n int) {
	o.bytes -= n
	for n > 0 {
		s := &o.segs[o.head]
		s.file = nil
		if n < len(s.b) {
			s.b = s.b[n:]
			return
		}
		n -= len(s.b)
		o.drop()
	}
	if o.head == len(o.segs) {
		o.rewind()
	}
}

// drop forgets the first run.
func (o *output) drop() {
	if pin := o.segs[o.head].pin; pin != nil {
		pin.unpin()
	}
	o.segs[o.head] = outSeg{}
	o.head++
	if o.head >= 256 && o.head*2 >= len(o.segs) {
		o.segs = o.segs[:copy(o.segs, o.segs[o.head:])]
		o.head = 0
	}
}

// rewind makes an emptied queue ready for reuse.
func (o *output) rewind() {
	o.segs, o.head = o.segs[:0], 0
	for i, c := range o.chunks {
		if len(o.spare) < chunksKept {
			o.spare = append(o.spare, c[:0])
		}
		o.chunks[i] = nil
	}
	o.chunks = o.chunks[:0]
}

// discard gives up everything.
func (o *output) discard() {
	for o.head < len(o.segs) {
		o.drop()
	}
	o.bytes = 0
	o.rewind()
}

// gather fills iov with the queue's first runs, at most bound bytes, and returns how many runs.
func (o *output) gather(bound int) (runs int, file *segment) {
	for i := o.head; i < len(o.segs) && runs < iovMax && bound > 0; i++ {
		s := &o.segs[i]
		if s.file != nil && runs > 0 {
			break
		}
		n := min(len(s.b), bound)
		o.iov[runs] = unix.Iovec{Base: &s.b[0]}
		o.iov[runs].SetLen(n)
		bound -= n
		runs++
		if s.file != nil {
			return runs, s.file
		}
	}
	return runs, nil
}

// write writes iov[:runs] without waiting. It returns the bytes written, or an errno.
func (o *output) write(fd, runs int, file *segment) (int, unix.Errno) {
	if file == nil { // the socket does not block, and Go survives SIGPIPE
		n, _, errno := unix.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&o.iov[0])), uintptr(runs))
		clear(o.iov[:runs])
		return int(n), errno
	}
	o.hdr = unix.Msghdr{Iov: &o.iov[0]}
	o.hdr.SetIovlen(runs)
	o.oob = append(o.oob[:0], unix.UnixRights(file.fd)...)
	o.hdr.Control = &o.oob[0]
	o.hdr.SetControllen(len(o.oob))
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&o.hdr)),
		unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, 0, 0, 0)
	clear(o.iov[:runs])
	return int(n), errno
}

// send queues or writes one frame made of a header and parts. When nobody is writing, the caller
// writes straight from the parts; otherwise they are copied, and leave with the writer's next call.
func (c *conn) send(f frame, parts ...[]byte) error {
	var staged *Buffer
	if f.body > messageDirect && c.announces() {
		staged = c.stage(parts, int(f.body))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		if staged != nil {
			staged.Free()
		}
		return c.err
	}
	if f.kind == frameMessage {
		if err := c.crowdedLocked(int(f.body)); err != nil {
			if staged != nil {
				staged.Free()
			}
			return err
		}
	}
	if staged != nil {
		return c.announceLocked(staged)
	}
	size := headerBytes + int(f.body)
	if f.kind == frameMessage {
		f.id = c.number
		if c.sendDirect(f.id, parts, int(f.body)) {
			c.number++
			c.sentBytes += uint64(f.body)
			return nil
		}
	}
	if c.out.bytes+size > queueMax && c.out.bytes > 0 {
		return fmt.Errorf("%w: %d bytes wait for the peer, %d allowed", ErrNoMemory, c.out.bytes, queueMax)
	}
	c.number++
	c.sentBytes += uint64(f.body)
	if c.writing || c.corked || c.tls != nil || c.out.waiting() > 0 || len(parts)+1 > iovMax || size <= copyMax {
		f.append(c.out.reserve(headerBytes)[:0])
		for _, p := range parts {
			c.out.copyIn(p)
		}
		c.flush()
		return c.err
	}
	c.sendParts(f, parts)
	return c.err
}

// resend queues a message that has its number already, as sendDirect laid it out.
func (c *conn) resend(msg []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	f := frame{body: uint32(len(msg) - 8), kind: frameMessage, id: binary.LittleEndian.Uint64(msg)}
	f.append(c.out.reserve(headerBytes)[:0])
	c.out.copyIn(msg[8:])
	c.flush()
}

// sendParts writes from the parts themselves and queues a copy of what the socket did not take.
func (c *conn) sendParts(f frame, parts [][]byte) {
	o := &c.out
	f.append(o.header[:0])
	o.iov[0] = unix.Iovec{Base: &o.header[0]}
	o.iov[0].SetLen(headerBytes)
	runs := 1
	for _, p := range parts {
		if len(p) > 0 {
			o.iov[runs] = unix.Iovec{Base: &p[0]}
			o.iov[runs].SetLen(len(p))
			runs++
		}
	}
	c.writing = true
	c.mu.Unlock()
	n, errno := o.write(c.fd, runs, nil)
	c.mu.Lock()
	c.writing = false
	if errno != 0 {
		n = 0
		if errno != unix.EAGAIN && errno != unix.EINTR {
			c.failLocked(fmt.Errorf("%w: write: %w", ErrPeerLost, errno))
		}
	}
	if rest := headerBytes + int(f.body) - n; rest > 0 && c.err == nil {
		left := make([]byte, 0, rest)
		skip := n
		for _, p := range append([][]byte{o.header[:]}, parts...) {
			left = append(left, p[min(skip, len(p)):]...)
			skip -= min(skip, len(p))
		}
		o.segs = slices.Insert(o.segs, o.head, outSeg{b: left})
		o.bytes += rest
		c.arm(true)
	}
	c.finishWrite()
	if c.err == nil && o.waiting() > 0 && !c.armed {
		c.flush()
	}
}

// flush writes what is queued, unless somebody is writing already: they will take it along. c.mu
// is held, but not during the system call.
func (c *conn) flush() {
	if c.err != nil {
		return
	}
	if c.tls != nil {
		if !c.writing {
			c.wrote = time.Duration(c.peer.node.turn.Load())
		}
		select {
		case c.kick <- struct{}{}:
		default:
		}
		return
	}
	if c.writing || c.corked || c.armed {
		return
	}
	o := &c.out
	for bound := writeBound; o.waiting() > 0 && c.err == nil; {
		if bound <= 0 {
			c.arm(true)
			return
		}
		runs, file := o.gather(bound)
		c.writing = true
		c.mu.Unlock()
		n, errno := o.write(c.fd, runs, file)
		c.mu.Lock()
		c.writing = false
		if errno == unix.EINTR {
			continue
		}
		if errno == unix.EAGAIN {
			c.arm(true)
			break
		}
		if errno != 0 {
			c.failLocked(fmt.Errorf("%w: write: %w", ErrPeerLost, errno))
			break
		}
		o.consume(n)
		bound -= n
		c.wrote = time.Duration(c.peer.node.turn.Load())
	}
	c.finishWrite()
}

// finishWrite cleans up after a writer whose peer was dropped meanwhile.
func (c *conn) finishWrite() {
	if c.dropped && !c.writing {
		c.release()
	}
}

// writeTLS is the writer of a TLS peer: a goroutine, because a TLS write may wait.
func (c *conn) writeTLS() {
	for range c.kick {
		c.mu.Lock()
		for c.out.waiting() > 0 && c.err == nil {
			b := c.out.segs[c.out.head].b
			c.writing = true
			c.mu.Unlock()
			n, err := c.tls.Write(b[:min(len(b), writeBound)])
			c.mu.Lock()
			c.writing = false
			c.out.consume(n)
			c.wrote = time.Duration(c.peer.node.turn.Load())
			if err != nil {
				c.failLocked(fmt.Errorf("%w: write: %w", ErrPeerLost, err))
			}
		}
		c.finishWrite()
		c.mu.Unlock()
	}
}

// stalled tells whether queued bytes have not moved for limit.
func (c *conn) stalled(now, limit time.Duration) bool {
	return c.out.waiting() > 0 && now-c.wrote > limit
}
