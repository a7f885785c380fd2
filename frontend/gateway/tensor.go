package gateway

import (
	"encoding/binary"
	"math"
	"strconv"

	"downbeat.dev/core/model"
)

var le = binary.LittleEndian

// tensorData parses a JSON tensor, nested by its shape or flat, into raw elements. It stops with an error after limit
// bytes.
func (s *jsonScanner) tensorData(dst []byte, datatype model.Datatype, limit, depth int) []byte {
	if depth > jsonDepthMax {
		s.failAt("data: nested deeper than %d", jsonDepthMax)
		return dst
	}

	s.eachElement(func() {
		if s.peekByte() == '[' {
			dst = s.tensorData(dst, datatype, limit, depth+1)
			return
		}
		dst = s.readElement(dst, datatype)
		if len(dst) > limit {
			s.failAt("data: more elements than the shape holds")
		}
	})
	return dst
}

// readElement parses one JSON value as an element of the datatype.
func (s *jsonScanner) readElement(dst []byte, datatype model.Datatype) []byte {
	if datatype == model.Bytes {
		text := s.rawString()
		if s.err != nil {
			return dst
		}
		text = unquoteText(text)
		return append(le.AppendUint32(dst, uint32(len(text))), text...)
	}

	// Booleans may also be written as 0 and 1, which are read below.
	if c := s.peekByte(); datatype == model.Bool && (c == 't' || c == 'f') {
		if s.readBoolean() {
			return append(dst, 1)
		}
		return append(dst, 0)
	}

	if datatype.Float() {
		if word := s.nonFiniteFloat(); word != "" {
			return appendNonFinite(dst, word, datatype)
		}
	}

	// An error points at the number, not after it.
	at := s.pos
	text := s.readNumber()
	if s.err != nil {
		return dst
	}
	out, ok := appendNumber(dst, text, datatype)
	if !ok {
		s.pos = at
		s.failAt("data: %.40s is not a value of %s", text, datatype)
		return dst
	}
	return out
}

// nonFiniteFloat reads NaN, Infinity or -Infinity, bare or as a string; "" if the next value is neither.
func (s *jsonScanner) nonFiniteFloat() string {
	if c := s.peekByte(); c != '"' {
		if !s.nonFinite {
			return ""
		}
		return s.nonFiniteWord()
	}

	at := s.pos
	switch word := s.readString(); word {
	case "NaN", "Infinity", "-Infinity":
		return word
	}

	// For another string, the code that reads a number there reports the error.
	s.pos = at
	return ""
}

// appendNonFinite appends NaN or an infinity as an element of a float datatype.
func appendNonFinite(dst []byte, word string, datatype model.Datatype) []byte {
	f, _ := strconv.ParseFloat(word, 64) // parses all three
	switch datatype {
	case model.FP32:
		return le.AppendUint32(dst, math.Float32bits(float32(f)))
	case model.FP64:
		return le.AppendUint64(dst, math.Float64bits(f))
	case model.FP16:
		return le.AppendUint16(dst, toHalf(f))
	}
	return le.AppendUint16(dst, toBrain(float32(f)))
}

// appendTensor appends raw elements as a flat JSON array. JSON has no numbers that are not finite: they become the
// strings "NaN", "Infinity" and "-Infinity", as in proto3's JSON. The protocol's schema allows strings in data, and
// numpy converts them to the numbers that they name.
func appendTensor(dst, raw []byte, datatype model.Datatype) []byte {
	dst, _ = appendElements(append(dst, '['), raw, datatype, math.MaxInt)
	return append(dst, ']')
}

// appendElements appends raw elements, separated by commas, until the text has limit bytes or more, and returns the
// remaining elements.
func appendElements(dst, raw []byte, datatype model.Datatype, limit int) (text, rest []byte) {
	size := datatype.Size()
	for first := true; len(raw) > 0 && len(dst) < limit; first = false {
		if !first {
			dst = append(dst, ',')
		}

		// Only BYTES has no fixed size: a length precedes each element.
		if size == 0 {
			text, rest, ok := model.NextText(raw)
			if !ok {
				return dst, nil
			}
			dst, raw = appendQuoted(dst, text), rest
			continue
		}
		dst = appendElement(dst, raw[:size], datatype)
		raw = raw[size:]
	}
	return dst, raw
}

// elementText returns the largest size of one element and its comma as JSON; 0 for BYTES, which have no bound.
func elementText(datatype model.Datatype) int {
	switch datatype {
	case model.Bool:
		return len("false,")
	case model.Uint8, model.Int8:
		return len("-128,")
	case model.Uint16, model.Int16:
		return len("-32768,")
	case model.Uint32, model.Int32:
		return len("-2147483648,")
	case model.Uint64, model.Int64:
		return len("-9223372036854775808,")
	case model.FP16, model.BF16, model.FP32:
		return len("-1.17549435e-38,")
	case model.FP64:
		return len("-2.2250738585072014e-308,")
	}
	return 0
}

func appendElement(dst, e []byte, datatype model.Datatype) []byte {
	switch datatype {
	case model.FP32:
		return appendFloat(dst, float64(math.Float32frombits(le.Uint32(e))), 32)
	case model.FP64:
		return appendFloat(dst, math.Float64frombits(le.Uint64(e)), 64)
	case model.FP16:
		return appendFloat(dst, fromHalf(le.Uint16(e)), 32)
	case model.BF16:
		// A bfloat16 is the upper half of a float32.
		return appendFloat(dst, float64(math.Float32frombits(uint32(le.Uint16(e))<<16)), 32)
	case model.Bool:
		return strconv.AppendBool(dst, e[0] != 0)
	case model.Uint8, model.Uint16, model.Uint32, model.Uint64:
		return strconv.AppendUint(dst, unsignedOf(e), 10)
	}
	return strconv.AppendInt(dst, signedOf(e), 10)
}
