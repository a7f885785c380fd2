package wire

import (
	"encoding/binary"
	"fmt"
	"slices"

	"downbeat.dev/core/model"
)

var le = binary.LittleEndian

// Sizes of the messages of fixed size.
const (
	descriptorBytes  = 16
	submitBytes      = 21 + descriptorBytes
	earlySubmitBytes = submitBytes + 8
	cancelBytes      = 12
	outcomeBytes     = 9
	pingBytes        = 8
	pongBytes        = 16
	welcomeBytes     = 6
)

// appendFixed appends frames that carry m; put encodes one message of size bytes.
func appendFixed[T any](dst []byte, t Type, m []T, size int, put func([]byte, *T)) []byte {
	for len(m) > 0 {
		// One frame takes as many messages as its count and its length allow.
		n := min(len(m), MessagesMax, frameBytesSoft/size)
		at := len(dst)
		dst = growBytes(dst, HeaderBytes+n*size)
		putHeader(dst[at:], t, n)

		b := dst[at+HeaderBytes:]
		for i := range m[:n] {
			put(b[:size:size], &m[i])
			b = b[size:]
		}
		m = m[n:]
	}
	return dst
}

// growBytes extends b by n bytes of undefined content.
func growBytes(b []byte, n int) []byte {
	// The caller writes every byte.
	if cap(b)-len(b) >= n {
		return b[:len(b)+n]
	}
	return append(b, make([]byte, n)...)
}

// decodeFixed decodes f into dst[:0], which grows when it is too small.
func decodeFixed[T any](dst []T, f Frame, t Type, size int, get func([]byte, *T)) ([]T, error) {
	dst = dst[:0]
	if err := checkType(f, t); err != nil {
		return dst, err
	}

	// A body of another length does not follow this protocol.
	if len(f.Body) != f.Count*size {
		return dst, fmt.Errorf("%w: %d %v messages take %d bytes, the frame has %d", ErrMalformed, f.Count, t, f.Count*size, len(f.Body))
	}

	dst = resize(dst, f.Count)
	b := f.Body
	for i := range dst {
		get(b[:size:size], &dst[i])
		b = b[size:]
	}
	return dst, nil
}

// resize returns dst with n elements. It keeps the elements within its capacity, so that their slices are reused.
func resize[T any](dst []T, n int) []T {
	if cap(dst) >= n {
		return dst[:n]
	}
	return append(dst[:cap(dst)], make([]T, n-cap(dst))...)
}

func checkType(f Frame, t Type) error {
	if f.Type != t {
		return fmt.Errorf("%w: a %v frame where %v belongs", ErrMalformed, f.Type, t)
	}
	return nil
}

func putDescriptor(b []byte, d *model.Descriptor) {
	_ = b[descriptorBytes-1]
	le.PutUint64(b, d.Key)
	le.PutUint32(b[8:], d.Offset)
	le.PutUint32(b[12:], d.Length)
}

func getDescriptor(b []byte, d *model.Descriptor) {
	_ = b[descriptorBytes-1]
	d.Key, d.Offset, d.Length = le.Uint64(b), le.Uint32(b[8:]), le.Uint32(b[12:])
}

// AppendSubmits appends frames carrying m. Only frames of the type TypeEarlySubmit have ReadyIn, so that the others take
// no more bytes than before version 10.
func AppendSubmits(dst []byte, m []Submit) []byte {
	for len(m) > 0 {
		// Each frame has one type.
		n := min(len(m), frameBytesSoft/earlySubmitBytes)
		if slices.ContainsFunc(m[:n], isEarly) {
			dst = appendFixed(dst, TypeEarlySubmit, m[:n], earlySubmitBytes, putEarlySubmit)
		} else {
			dst = appendFixed(dst, TypeSubmit, m[:n], submitBytes, putSubmit)
		}
		m = m[n:]
	}
	return dst
}

func isEarly(m Submit) bool { return m.ReadyIn != 0 }

func putSubmit(b []byte, m *Submit) {
	_ = b[submitBytes-1]
	le.PutUint64(b, m.ID)
	le.PutUint64(b[8:], uint64(m.Budget))
	le.PutUint32(b[16:], m.Model)
	b[20] = m.Priority
	putDescriptor(b[21:], &m.Input)
}

func putEarlySubmit(b []byte, m *Submit) {
	putSubmit(b, m)
	le.PutUint64(b[submitBytes:], uint64(m.ReadyIn))
}

// DecodeSubmits decodes f, of either type, using dst's memory.
func DecodeSubmits(dst []Submit, f Frame) ([]Submit, error) {
	if f.Type != TypeEarlySubmit {
		return decodeFixed(dst, f, TypeSubmit, submitBytes, getSubmit)
	}
	if f.Version != 0 && f.Version < ReadyVersion {
		return dst[:0], fmt.Errorf("%w: early submits of version %d, which knows none: version %d does", ErrMalformed, f.Version, ReadyVersion)
	}

	dst, err := decodeFixed(dst, f, TypeEarlySubmit, earlySubmitBytes, getEarlySubmit)
	if err == nil && !slices.ContainsFunc(dst, isEarly) {
		return dst[:0], fmt.Errorf("%w: early submits whose inputs are all there", ErrMalformed)
	}
	return dst, err
}

func getSubmit(b []byte, m *Submit) {
	_ = b[submitBytes-1]
	m.ID, m.Budget, m.Model, m.Priority, m.ReadyIn = le.Uint64(b), int64(le.Uint64(b[8:])), le.Uint32(b[16:]), b[20], 0
	getDescriptor(b[21:], &m.Input)
}

func getEarlySubmit(b []byte, m *Submit) {
	getSubmit(b, m)
	m.ReadyIn = int64(le.Uint64(b[submitBytes:]))
}

// AppendCancels appends frames carrying m.
func AppendCancels(dst []byte, m []Cancel) []byte {
	return appendFixed(dst, TypeCancel, m, cancelBytes, putCancel)
}

// DecodeCancels decodes f, using dst's memory.
func DecodeCancels(dst []Cancel, f Frame) ([]Cancel, error) {
	return decodeFixed(dst, f, TypeCancel, cancelBytes, getCancel)
}

func putCancel(b []byte, m *Cancel) {
	le.PutUint64(b, m.ID)
	le.PutUint32(b[8:], m.Model)
}

func getCancel(b []byte, m *Cancel) { m.ID, m.Model = le.Uint64(b), le.Uint32(b[8:]) }

// AppendOutcomes appends frames carrying m.
func AppendOutcomes(dst []byte, m []Outcome) []byte {
	return appendFixed(dst, TypeOutcome, m, outcomeBytes, func(b []byte, m *Outcome) {
		le.PutUint64(b, m.ID)
		b[8] = byte(m.Reason)
	})
}

// DecodeOutcomes decodes f, using dst's memory.
func DecodeOutcomes(dst []Outcome, f Frame) ([]Outcome, error) {
	return decodeFixed(dst, f, TypeOutcome, outcomeBytes, func(b []byte, m *Outcome) { m.ID, m.Reason = le.Uint64(b), model.Reason(b[8]) })
}

// AppendPing appends one Ping.
func AppendPing(dst []byte, m Ping) []byte {
	at := len(dst)
	dst = growBytes(dst, HeaderBytes+pingBytes)
	putHeader(dst[at:], TypePing, 1)
	le.PutUint64(dst[at+HeaderBytes:], uint64(m.Stamp))
	return dst
}

// DecodePing decodes a frame that carries one Ping.
func DecodePing(f Frame) (Ping, error) {
	if err := checkOne(f, TypePing, pingBytes); err != nil {
		return Ping{}, err
	}
	return Ping{Stamp: int64(le.Uint64(f.Body))}, nil
}

// AppendPong appends one Pong.
func AppendPong(dst []byte, m Pong) []byte {
	at := len(dst)
	dst = growBytes(dst, HeaderBytes+pongBytes)
	putHeader(dst[at:], TypePong, 1)
	le.PutUint64(dst[at+HeaderBytes:], uint64(m.Stamp))
	le.PutUint64(dst[at+HeaderBytes+8:], uint64(m.Hold))
	return dst
}

// DecodePong decodes a frame that carries one Pong.
func DecodePong(f Frame) (Pong, error) {
	if err := checkOne(f, TypePong, pongBytes); err != nil {
		return Pong{}, err
	}
	return Pong{Stamp: int64(le.Uint64(f.Body)), Hold: int64(le.Uint64(f.Body[8:]))}, nil
}

func checkOne(f Frame, t Type, size int) error {
	if err := checkType(f, t); err != nil {
		return err
	}
	if f.Count != 1 || len(f.Body) != size {
		return fmt.Errorf("%w: a %v frame has one message of %d bytes, not %d in %d", ErrMalformed, t, size, f.Count, len(f.Body))
	}
	return nil
}
