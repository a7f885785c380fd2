package wire

import (
	"fmt"
	"math"
	"unicode/utf8"
)

// encoder writes one frame of messages of varying size. The first error is kept.
type encoder struct {
	b       []byte
	at      int // where the frame's header starts
	t       Type
	version uint16 // the protocol version of the receiver
	err     error
}

func beginFrame(dst []byte, t Type) encoder { return beginFrameAs(dst, t, Version) }

// beginFrameAs starts a frame for a peer of a protocol version.
func beginFrameAs(dst []byte, t Type, version uint16) encoder {
	// endFrame fills in the header, when length and count are known.
	return encoder{b: growBytes(dst, HeaderBytes), at: len(dst), t: t, version: version}
}

// appendVaried appends frames that carry m; put encodes one message of any size. A frame ends when it is long or
// full.
func appendVaried[T any](dst []byte, t Type, version uint16, m []T, put func(*encoder, *T)) ([]byte, error) {
	for len(m) > 0 {
		e := beginFrameAs(dst, t, version)
		n := 0
		for n < len(m) && n < MessagesMax && len(e.b)-e.at < frameBytesSoft {
			put(&e, &m[n])
			n++
		}

		var err error
		if dst, err = e.endFrame(n); err != nil {
			return dst, err
		}
		m = m[n:]
	}
	return dst, nil
}

// decodeVaried appends the messages of f to dst; get decodes one.
func decodeVaried[T any](dst []T, f Frame, t Type, get func(*decoder, *T)) ([]T, error) {
	// A message's size is known only after it is read, so dst grows message by message.
	d := openFrame(f, t, false)
	if d.err != nil {
		return dst, d.err
	}

	for range f.Count {
		var m T
		if get(&d, &m); d.err != nil {
			break
		}
		dst = append(dst, m)
	}
	return dst, d.closeFrame()
}

// endFrame writes the header for count messages. On an error dst is as it was before beginFrame.
func (e *encoder) endFrame(count int) ([]byte, error) {
	if e.err == nil && len(e.b)-e.at-HeaderBytes > FrameBytesMax {
		e.err = fmt.Errorf("%w: %d bytes, at most %d", ErrLimit, len(e.b)-e.at-HeaderBytes, FrameBytesMax)
	}

	// A frame that cannot be sent leaves nothing behind: dst is as before.
	if e.err != nil {
		return e.b[:e.at], fmt.Errorf("encode %v: %w", e.t, e.err)
	}

	putHeader(e.b[e.at:], e.t, count)
	// putHeader writes this protocol's version; the peer may know an earlier one only.
	e.b[e.at+5] = byte(e.version)
	return e.b, nil
}

func (e *encoder) u16(v uint16) { e.b = le.AppendUint16(e.b, v) }
func (e *encoder) u32(v uint32) { e.b = le.AppendUint32(e.b, v) }
func (e *encoder) u64(v uint64) { e.b = le.AppendUint64(e.b, v) }

func (e *encoder) bool(v bool) {
	if v {
		e.b = append(e.b, 1)
	} else {
		e.b = append(e.b, 0)
	}
}

// readShare reads a number from 0 to 1.
func (d *decoder) readShare(what string) float64 {
	v := math.Float64frombits(d.u64())
	if !(v >= 0 && v <= 1) {
		d.keepError(fmt.Errorf("%w: %s is %v, 0 to 1 is allowed", ErrMalformed, what, v))
		return 0
	}
	return v
}

// text writes a u16 length and the bytes.
func (e *encoder) text(what, s string, most int) {
	// gRPC and JSON, which pass names on, accept only UTF-8.
	if !utf8.ValidString(s) {
		e.keepError(fmt.Errorf("%w: %s is not UTF-8", ErrMalformed, what))
		return
	}

	e.putCount(what, len(s), most)
	e.b = append(e.b, s...)
}

// putCount writes a u16 count; putSmall a u8.
func (e *encoder) putCount(what string, n, most int) {
	e.checkLimit(what, n, most)
	e.u16(uint16(n))
}

func (e *encoder) putSmall(what string, n, most int) {
	e.checkLimit(what, n, most)
	e.b = append(e.b, byte(n))
}

func (e *encoder) checkLimit(what string, n, most int) {
	// The peer's decoder would refuse a larger count and close the link.
	if n > most {
		e.keepError(fmt.Errorf("%w: %s: %d, at most %d", ErrLimit, what, n, most))
	}
}

func (e *encoder) keepError(err error) {
	// The first error is the cause; later ones follow from it.
	if e.err == nil {
		e.err = err
	}
}

// decoder reads one frame's body. The first error is kept, and every later read returns zero.
type decoder struct {
	b       []byte
	t       Type
	version uint8 // of the frame; 0: this protocol's
	err     error
}

// hasFieldsOf reports whether the frame's version has the fields of a version.
func (d *decoder) hasFieldsOf(version uint8) bool { return d.version == 0 || d.version >= version }

func openFrame(f Frame, t Type, one bool) decoder {
	d := decoder{b: f.Body, t: t, version: f.Version, err: checkType(f, t)}
	if d.err == nil && one && f.Count != 1 {
		d.keepError(fmt.Errorf("%w: %d messages, one is allowed", ErrMalformed, f.Count))
	}
	return d
}

func (d *decoder) closeFrame() error {
	if d.err == nil {
		d.err = checkEnd(d.b, d.t)
	}
	if d.err != nil {
		return fmt.Errorf("decode %v: %w", d.t, d.err)
	}
	return nil
}

func (d *decoder) takeNext(n int) []byte {
	if d.err != nil {
		return nil
	}
	if len(d.b) < n {
		d.keepError(fmt.Errorf("%w: %d bytes left, %d needed", ErrMalformed, len(d.b), n))
		return nil
	}

	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) u8() uint8 {
	if b := d.takeNext(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) u16() uint16 {
	if b := d.takeNext(2); b != nil {
		return le.Uint16(b)
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if b := d.takeNext(4); b != nil {
		return le.Uint32(b)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if b := d.takeNext(8); b != nil {
		return le.Uint64(b)
	}
	return 0
}

func (d *decoder) bool(what string) bool {
	v := d.u8()
	if v > 1 {
		d.keepError(fmt.Errorf("%w: %s is %d, 0 or 1 is allowed", ErrMalformed, what, v))
	}
	return v == 1
}

func (d *decoder) text(what string, most int) string {
	n := d.readCount(what, most, 1)

	b := d.takeNext(n)
	if !utf8.Valid(b) {
		d.keepError(fmt.Errorf("%w: %s is not UTF-8", ErrMalformed, what))
		return ""
	}
	return string(b)
}

// readCount reads a u16 count of elements of at least size bytes each; readSmall a u8. It refuses a count over the
// limit or more than the remaining bytes can hold, so that callers may allocate.
func (d *decoder) readCount(what string, most, size int) int {
	return d.checkCount(what, int(d.u16()), most, size)
}

func (d *decoder) readSmall(what string, most, size int) int {
	return d.checkCount(what, int(d.u8()), most, size)
}

func (d *decoder) checkCount(what string, n, most, size int) int {
	if d.err != nil {
		return 0
	}

	if n > most {
		d.keepError(fmt.Errorf("%w: %s: %d, at most %d", ErrLimit, what, n, most))
		return 0
	}

	// Not all elements can be there, so the caller must not allocate for them.
	if n*size > len(d.b) {
		d.keepError(fmt.Errorf("%w: %s: %d do not fit into %d bytes", ErrMalformed, what, n, len(d.b)))
		return 0
	}
	return n
}

func (d *decoder) keepError(err error) {
	if d.err == nil {
		d.err = err
	}
}
