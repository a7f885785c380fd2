package model

import "encoding/binary"

// An element of a BYTES tensor, a text, is packed as a length of 4 bytes, little-endian, followed by its bytes.

// TextLengthBytes is the size of a packed text's length field.
const TextLengthBytes = 4

// AppendText packs one text.
func AppendText(dst []byte, text string) []byte {
	return append(binary.LittleEndian.AppendUint32(dst, uint32(len(text))), text...)
}

// NextText splits packed texts after the first. The results alias packed. ok is false if packed is empty or cut off
// within the text.
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

// TextsBytes returns the size of the first n packed texts; −1 if there are fewer.
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

// CountTexts returns the number of packed texts. If packed ends within a text, ok is false and n counts the complete
// ones.
func CountTexts(packed []byte) (n int, ok bool) {
	for len(packed) > 0 {
		if _, packed, ok = NextText(packed); !ok {
			return n, false
		}
		n++
	}
	return n, true
}
