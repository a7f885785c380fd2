package account

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// Kind is the kind of a Record.
type Kind byte

// The kinds of records.
const (
	Ready  Kind = 'R' // the caller is connected and its model can be requested
	Sent   Kind = 'S'
	Output Kind = 'O' // the request ended with an output; Text is the output
	Ended  Kind = 'E' // the request ended without one; Text is the reason
	Noise  Kind = 'N' // Until is the delay of a timer on the caller's host, in nanoseconds
	Left   Kind = 'L' // the caller has ended all requests and leaves
)

// Record is one entry of a caller's records. Times are nanoseconds of the host's monotonic clock, which all processes
// of a host share.
type Record struct {
	Kind  Kind
	ID    uint64
	At    int64
	Until int64 // the deadline, in Sent
	Size  int   // of the input in bytes, in Sent
	Text  []byte
}

const (
	headBytes = 1 + 8 + 8 + 8 + 4 + 4
	textMax   = 1 << 16
)

// Now returns the time of the host's monotonic clock.
func Now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every Linux has this clock
	}
	return t.Nano()
}

// Writer writes records. Its methods may be called concurrently.
type Writer struct {
	mu sync.Mutex
	w  *bufio.Writer
}

// NewWriter returns a writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: bufio.NewWriterSize(w, 64<<10)} }

// Write adds a record. It stays in memory until Flush, or until the buffer is full.
func (w *Writer) Write(r Record) {
	var head [headBytes]byte
	head[0] = byte(r.Kind)
	binary.LittleEndian.PutUint64(head[1:], r.ID)
	binary.LittleEndian.PutUint64(head[9:], uint64(r.At))
	binary.LittleEndian.PutUint64(head[17:], uint64(r.Until))
	binary.LittleEndian.PutUint32(head[25:], uint32(r.Size))
	binary.LittleEndian.PutUint32(head[29:], uint32(len(r.Text)))

	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = w.w.Write(head[:]) // bufio keeps the first error for Flush
	_, _ = w.w.Write(r.Text)
}

// Flush writes all buffered records.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.w.Flush()
}

// Read reads the next record. It returns io.EOF at the end, also after half a record of a killed caller.
func Read(r *bufio.Reader) (Record, error) {
	var head [headBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Record{}, endOf(err)
	}
	rec := Record{Kind: Kind(head[0]), ID: binary.LittleEndian.Uint64(head[1:]), At: int64(binary.LittleEndian.Uint64(head[9:])),
		Until: int64(binary.LittleEndian.Uint64(head[17:])), Size: int(binary.LittleEndian.Uint32(head[25:]))}
	n := binary.LittleEndian.Uint32(head[29:])

	// A corrupt length must not make the reader allocate gigabytes.
	if n > textMax {
		return Record{}, fmt.Errorf("record of kind %q: text of %d bytes, want at most %d", head[0], n, textMax)
	}
	rec.Text = make([]byte, n)
	if _, err := io.ReadFull(r, rec.Text); err != nil {
		return Record{}, endOf(err)
	}
	return rec, nil
}

func endOf(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return io.EOF
	}
	return err
}
