package wire

import (
	"fmt"
	"unicode/utf8"
)

// encoder writes one frame of messages that vary in size. The first error sticks.
type encoder struct {
	b   []byte
	at  int // where the frame's header starts
	t   Type
	err error
}

func begin(dst []byte, t Type) encoder {
	return encoder{b: grow(dst, HeaderBytes), at: len(dst), t: t}
}

// end writes the header for count messages. On an error dst is as it was before begin.
func (e *encoder) end(count int) ([]byte, error) {
	if e.err == nil && len(e.b)-e.at-HeaderBytes > FrameBytesMax {
		e.err = fmt.Errorf("%w: %d bytes, at most %d", ErrLimit, len(e.b)-e.at-HeaderBytes, FrameBytesMax)
	}
	if e.err != nil {
		return e.b[:e.at], fmt.Errorf("encode %v: %w", e.t, e.err)
	}
	putHeader(e.b[e.at:], e.t, count)
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

// text writes a u16 length and the bytes.
func (e *encoder) text(what, s string, most int) {
	if !utf8.ValidString(s) {
		e.fail(fmt.Errorf("%w: %s is not UTF-8", ErrMalformed, what))
		return
	}
	e.count(what, len(s), most)
	e.b = append(e.b, s...)
}

// count writes a u16 count of what follows; small a u8.
func (e *encoder) count(what string, n, most int) {
	e.check(what, n, most)
	e.u16(uint16(n))
}

func (e *encoder) small(what string, n, most int) {
	e.check(what, n, most)
	e.b = append(e.b, byte(n))
}

func (e *encoder) check(what string, n, most int) {
	if n > most {
		e.fail(fmt.Errorf("%w: %s: %d, at most %d", ErrLimit, what, n, most))
	}
}

func (e *encoder) fail(err error) {
	if e.err == nil {
		e.err = err
	}
}

// decoder reads one frame's body. The first error sticks and every later read returns zero.
type decoder struct {
	b   []byte
	t   Type
	err error
}

func open(f Frame, t Type, one bool) decoder {
	d := decoder{b: f.Body, t: t, err: expect(f, t)}
	if d.err == nil && one && f.Count != 1 {
		d.fail(fmt.Errorf("%w: %d messages, one is allowed", ErrMalformed, f.Count))
	}
	return d
}

func (d *decoder) close() error {
	if d.err == nil {
		d.err = ended(d.b, d.t)
	}
	if d.err != nil {
		return fmt.Errorf("decode %v: %w", d.t, d.err)
	}
	return nil
}

func (d *decoder) take(n int) []byte {
	if d.err != nil {
		return nil
	}
	if len(d.b) < n {
		d.fail(fmt.Errorf("%w: %d bytes left, %d needed", ErrMalformed, len(d.b), n))
		return nil
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) u8() uint8 {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) u16() uint16 {
	if b := d.take(2); b != nil {
		return le.Uint16(b)
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if b := d.take(4); b != nil {
		return le.Uint32(b)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if b := d.take(8); b != nil {
		return le.Uint64(b)
	}
	return 0
}

func (d *decoder) bool(what string) bool {
	v := d.u8()
	if v > 1 {
		d.fail(fmt.Errorf("%w: %s is %d, 0 or 1 is allowed", ErrMalformed, what, v))
	}
	return v == 1
}

func (d *decoder) text(what string, most int) string {
	n := d.count(what, most, 1)
	b := d.take(n)
	if !utf8.Valid(b) {
		d.fail(fmt.Errorf("%w: %s is not UTF-8", ErrMalformed, what))
		return ""
	}
	return string(b)
}

// count reads a u16 count of elements of at least size bytes each; small a u8. It refuses a count
// that is over the limit or that the remaining bytes cannot hold, so that callers may allocate.
func (d *decoder) count(what string, most, size int) int {
	return d.check(what, int(d.u16()), most, size)
}

func (d *decoder) small(what string, most, size int) int {
	return d.check(what, int(d.u8()), most, size)
}

func (d *decoder) check(what string, n, most, size int) int {
	if d.err != nil {
		return 0
	}
	if n > most {
		d.fail(fmt.Errorf("%w: %s: %d, at most %d", ErrLimit, what, n, most))
		return 0
	}
	if n*size > len(d.b) {
		d.fail(fmt.Errorf("%w: %s: %d do not fit into %d bytes", ErrMalformed, what, n, len(d.b)))
		return 0
	}
	return n
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}
