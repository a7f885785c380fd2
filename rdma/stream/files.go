package stream

import "golang.org/x/sys/unix"

// filesMax is the largest number of descriptors that wait to be taken.
const filesMax = 4

// files are descriptors that arrived with bytes.
type files struct{ fds []int }

// keepFiles keeps the descriptors of a control message, and returns false if there are too many.
func (f *files) keepFiles(oob []byte) bool {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return false
	}

	// Keep every descriptor first, even if there are too many: a descriptor that is not kept could never be closed.
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
			f.fds = append(f.fds, fds...)
		}
	}
	return len(f.fds) <= filesMax
}

func (f *files) takeFile() (fd int, ok bool) {
	if len(f.fds) == 0 {
		return -1, false
	}

	fd = f.fds[0]
	f.fds = f.fds[:copy(f.fds, f.fds[1:])]
	return fd, true
}

func (f *files) closeFiles() {
	for _, fd := range f.fds {
		unix.Close(fd)
	}
	f.fds = nil
}
