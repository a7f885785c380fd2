package stream

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"downbeat.dev/rdma/memory"
)

// vector holds the pieces of one write or read, in memory that the kernel may access during a raw call.
type vector struct {
	pieces [runsMax]unix.Iovec
	n      int
	header unix.Msghdr
	out    []byte   // a descriptor to send
	in     [64]byte // received descriptors
}

// resetPieces empties the vector.
func (v *vector) resetPieces() {
	clear(v.pieces[:v.n])
	v.n = 0
}

// isFull reports whether no further piece fits.
func (v *vector) isFull() bool { return v.n == runsMax }

// addPiece appends b, unless it is empty.
func (v *vector) addPiece(b []byte) {
	if len(b) == 0 {
		return
	}
	v.pieces[v.n] = unix.Iovec{Base: &b[0]}
	v.pieces[v.n].SetLen(len(b))
	v.n++
}

// countBytes returns the number of bytes of all pieces.
func (v *vector) countBytes() (bytes int) {
	for i := range v.n {
		bytes += int(v.pieces[i].Len)
	}
	return bytes
}

// fillFrom fills the vector with the queue's first runs, at most bound bytes. A run with a file ends it.
func (v *vector) fillFrom(q *queue, bound int) (file *memory.Segment) {
	v.resetPieces()

	for i := q.head; i < len(q.runs) && !v.isFull() && bound > 0; i++ {
		r := &q.runs[i]
		if r.file != nil && v.n > 0 {
			break
		}

		b := r.b[:min(len(r.b), bound)]
		v.addPiece(b)
		bound -= len(b)

		// A descriptor arrives with the bytes of its call, so nothing may follow it in the same call.
		if r.file != nil {
			return r.file
		}
	}
	return nil
}

// write writes the pieces without waiting, with a file's descriptor if there is one. It returns the bytes written, or
// an errno. Go survives SIGPIPE on a socket.
func (v *vector) write(fd int, file *memory.Segment) (int, unix.Errno) {
	defer v.resetPieces()
	if file == nil {
		n, _, errno := unix.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&v.pieces[0])), uintptr(v.n))
		return int(n), errno
	}

	v.header = unix.Msghdr{Iov: &v.pieces[0]}
	v.header.SetIovlen(v.n)
	v.out = append(v.out[:0], unix.UnixRights(file.File())...)
	v.header.Control = &v.out[0]
	v.header.SetControllen(len(v.out))
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&v.header)),
		unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, 0, 0, 0)
	return int(n), errno
}

// readPieces reads into the pieces without waiting.
func (v *vector) readPieces(fd int) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(&v.pieces[0])), uintptr(v.n))
	return int(n), errno
}

// readFiles is readPieces for a Unix socket: it keeps received descriptors in f.
func (v *vector) readFiles(fd int, f *files) (int, unix.Errno) {
	v.header = unix.Msghdr{Iov: &v.pieces[0], Control: &v.in[0]}
	v.header.SetIovlen(v.n)
	v.header.SetControllen(len(v.in))

	n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&v.header)), unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)

	// Descriptors that were not requested would use up this process's limit.
	if errno == 0 && v.header.Controllen > 0 && !f.keepFiles(v.in[:v.header.Controllen]) {
		return 0, unix.EPROTO
	}
	return int(n), errno
}

// firstPiece returns the first piece.
func (v *vector) firstPiece() []byte { return unsafe.Slice(v.pieces[0].Base, v.pieces[0].Len) }
