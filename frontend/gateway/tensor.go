package gateway

import (
	"encoding/binary"
	"math"
	"strconv"

	"downbeat.dev/frontend"
)

var le = binary.LittleEndian

// appendNumber appends one JSON number as a little-endian element of the datatype.
func appendNumber(dst, text []byte, datatype string) ([]byte, bool) {
	switch datatype {
	case "FP32":
		f, err := strconv.ParseFloat(view(text), 32)
		return le.AppendUint32(dst, math.Float32bits(float32(f))), err == nil
	case "FP64":
		f, err := strconv.ParseFloat(view(text), 64)
		return le.AppendUint64(dst, math.Float64bits(f)), err == nil
	case "FP16":
		f, err := strconv.ParseFloat(view(text), 64)
		h := toHalf(f)
		return le.AppendUint16(dst, h), err == nil && h&0x7c00 != 0x7c00
	case "BF16":
		f, err := strconv.ParseFloat(view(text), 32)
		b := toBrain(float32(f))
		return le.AppendUint16(dst, b), err == nil && b&0x7f80 != 0x7f80
	case "UINT64":
		n, err := strconv.ParseUint(view(text), 10, 64)
		return le.AppendUint64(dst, n), err == nil
	}
	n, err := strconv.ParseInt(view(text), 10, 64)
	if err != nil {
		return dst, false
	}
	return appendInteger(dst, n, datatype)
}

// appendInteger appends n as an element of an integer datatype; false if it does not fit.
func appendInteger(dst []byte, n int64, datatype string) ([]byte, bool) {
	switch datatype {
	case "INT64":
		return le.AppendUint64(dst, uint64(n)), true
	case "INT32":
		return le.AppendUint32(dst, uint32(n)), n == int64(int32(n))
	case "UINT32":
		return le.AppendUint32(dst, uint32(n)), n == int64(uint32(n))
	case "INT16":
		return le.AppendUint16(dst, uint16(n)), n == int64(int16(n))
	case "UINT16":
		return le.AppendUint16(dst, uint16(n)), n == int64(uint16(n))
	case "INT8":
		return append(dst, byte(n)), n == int64(int8(n))
	case "UINT8":
		return append(dst, byte(n)), n == int64(uint8(n))
	case "BOOL":
		return append(dst, byte(n)), n == 0 || n == 1
	}
	return dst, false
}

// tensorData parses a JSON tensor, nested by its shape or flat, into raw elements. It stops with an
// error after max bytes.
func (s *jsonScanner) tensorData(dst []byte, datatype string, limit, depth int) []byte {
	if depth > jsonDepthMax {
		s.fail("data: nested deeper than %d", jsonDepthMax)
		return dst
	}
	s.array(func() {
		if s.peek() == '[' {
			dst = s.tensorData(dst, datatype, limit, depth+1)
			return
		}
		dst = s.element(dst, datatype)
		if len(dst) > limit {
			s.fail("data: more elements than the shape holds")
		}
	})
	return dst
}

// element parses one JSON value as an element of the datatype.
func (s *jsonScanner) element(dst []byte, datatype string) []byte {
	if datatype == "BYTES" {
		text := s.rawString()
		if s.err != nil {
			return dst
		}
		text = unquote(text)
		return append(le.AppendUint32(dst, uint32(len(text))), text...)
	}
	if c := s.peek(); datatype == "BOOL" && (c == 't' || c == 'f') {
		if s.boolean() {
			return append(dst, 1)
		}
		return append(dst, 0)
	}
	at := s.pos
	text := s.number()
	if s.err != nil {
		return dst
	}
	out, ok := appendNumber(dst, text, datatype)
	if !ok {
		s.pos = at
		s.fail("data: %.40s is not a value of %s", text, datatype)
		return dst
	}
	return out
}

// appendTensor appends raw elements as a flat JSON array. JSON has no infinities: elements that are
// not finite become null, as in JavaScript.
func appendTensor(dst, raw []byte, datatype string) []byte {
	dst = append(dst, '[')
	size, _ := frontend.ElementSize(datatype)
	for first := true; len(raw) > 0; first = false {
		if !first {
			dst = append(dst, ',')
		}
		if size == 0 {
			n := int(le.Uint32(raw))
			dst = appendQuoted(dst, raw[4:4+n])
			raw = raw[4+n:]
			continue
		}
		dst = appendElement(dst, raw[:size], datatype)
		raw = raw[size:]
	}
	return append(dst, ']')
}

func appendElement(dst, e []byte, datatype string) []byte {
	switch datatype {
	case "FP32":
		return appendFloat(dst, float64(math.Float32frombits(le.Uint32(e))), 32)
	case "FP64":
		return appendFloat(dst, math.Float64frombits(le.Uint64(e)), 64)
	case "FP16":
		return appendFloat(dst, fromHalf(le.Uint16(e)), 32)
	case "BF16":
		return appendFloat(dst, float64(math.Float32frombits(uint32(le.Uint16(e))<<16)), 32)
	case "BOOL":
		return strconv.AppendBool(dst, e[0] != 0)
	case "UINT8", "UINT16", "UINT32", "UINT64":
		return strconv.AppendUint(dst, unsigned(e), 10)
	}
	return strconv.AppendInt(dst, signed(e), 10)
}

func appendFloat(dst []byte, f float64, bits int) []byte {
	if math.IsInf(f, 0) || math.IsNaN(f) {
		return append(dst, "null"...)
	}
	return strconv.AppendFloat(dst, f, 'g', -1, bits)
}

func unsigned(e []byte) uint64 {
	switch len(e) {
	case 1:
		return uint64(e[0])
	case 2:
		return uint64(le.Uint16(e))
	case 4:
		return uint64(le.Uint32(e))
	}
	return le.Uint64(e)
}

func signed(e []byte) int64 {
	switch len(e) {
	case 1:
		return int64(int8(e[0]))
	case 2:
		return int64(int16(le.Uint16(e)))
	case 4:
		return int64(int32(le.Uint32(e)))
	}
	return int64(le.Uint64(e))
}

// value reads an element as a number, for classification.
func value(e []byte, datatype string) float64 {
	switch datatype {
	case "FP32":
		return float64(math.Float32frombits(le.Uint32(e)))
	case "FP64":
		return math.Float64frombits(le.Uint64(e))
	case "FP16":
		return fromHalf(le.Uint16(e))
	case "BF16":
		return float64(math.Float32frombits(uint32(le.Uint16(e)) << 16))
	case "BOOL", "UINT8", "UINT16", "UINT32", "UINT64":
		return float64(unsigned(e))
	}
	return float64(signed(e))
}

// elements counts the elements of a BYTES tensor's raw form; -1 if it is cut or has a tail.
func elements(raw []byte) int {
	n := 0
	for len(raw) > 0 {
		if len(raw) < 4 || uint64(le.Uint32(raw)) > uint64(len(raw)-4) {
			return -1
		}
		raw = raw[4+le.Uint32(raw):]
		n++
	}
	return n
}

// bytesPrefix returns how many bytes the first n elements of a BYTES tensor take, or -1.
func bytesPrefix(raw []byte, n int) int {
	at := 0
	for range n {
		rest := raw[at:]
		if len(rest) < 4 || uint64(le.Uint32(rest)) > uint64(len(rest)-4) {
			return -1
		}
		at += 4 + int(le.Uint32(rest))
	}
	return at
}

// toHalf rounds to the nearest IEEE 754 binary16, ties to even.
func toHalf(f float64) uint16 {
	sign := uint16(math.Float64bits(f) >> 48 & 0x8000)
	f = math.Abs(f)
	switch {
	case math.IsNaN(f):
		return sign | 0x7e00
	case f >= 65520:
		return sign | 0x7c00
	case f < 0x1p-14: // subnormal: units of 2^-24
		return sign | uint16(math.RoundToEven(f*0x1p24))
	}
	_, exp := math.Frexp(f)                                  // f in [2^(exp-1), 2^exp)
	units := uint16(math.RoundToEven(math.Ldexp(f, 11-exp))) // 1024 … 2048
	return sign | (uint16(exp+14)<<10 + units - 1024)
}

func fromHalf(h uint16) float64 {
	sign, exp, frac := 1.0, int(h>>10&31), float64(h&1023)
	if h&0x8000 != 0 {
		sign = -1
	}
	switch exp {
	case 0:
		return sign * frac * 0x1p-24
	case 31:
		if frac != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(1024+frac, exp-25)
}

// toBrain rounds to the nearest bfloat16, ties to even.
func toBrain(f float32) uint16 {
	b := math.Float32bits(f)
	if f != f {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
