package model

import "encoding/binary"

// An element of a BYTES tensor, a text, is packed as its length, 4 bytes, little-endian, and then its bytes.

// TextLengthBytes is what a text takes beside its own bytes.
const TextLengthBytes = 4

// AppendText packs one text.
func AppendText(dst []byte, text string) []byte {
	return append(binary.LittleEndian.AppendUint32(dst, uint32(len(text))), text...)
}

// NextText returns the first of packed texts, which lies within packed, and what follows. ok is false if there is
// none or it is cut.
func NextText(packed []byte) (text, rest []byte, ok bool) {
	if len(packed) < TextLengthBytes {
		return nil, packed, false
	}
	n, rest := uint64(binary.LittleEndian.Uint32(packed)), packed[TextLengthBytes:]
	if n > uint64(len(rest)) {
		return nil, packed, false
	}
	return rest[:n:n], rest[n:], true
}

// TextsBytes returns how many bytes the first n of packed texts take, −1 if there are fewer.
func TextsBytes(packed []byte, n int) int {
	rest := packed
	for range n {
		var ok bool
		if _, rest, ok = NextText(rest); !ok {
			return -1
		}
	}
	return len(packed) - len(rest)
}

// CountTexts returns how many texts are packed. If packed does not end with a whole one, ok is false and n says how
// many come before what is cut.
func CountTexts(packed []byte) (n int, ok bool) {
	for len(packed) > 0 {
		if _, packed, ok = NextText(packed); !ok {
			return n, false
		}
		n++
	}
	return n, true
}
