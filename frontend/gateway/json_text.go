package gateway

import (
	"unicode/utf8"
	"unsafe"
)

// readString reads a string and returns it unquoted.
func (s *jsonScanner) readString() string {
	raw := s.rawString()
	if s.err != nil {
		return ""
	}
	return string(unquoteText(raw))
}

// readName is readString for a name, which errors repeat.
func (s *jsonScanner) readName(what string) string {
	raw := s.rawString()
	if len(raw) > nameMax {
		s.failAt("%s: %d bytes: must be at most %d", what, len(raw), nameMax)
	}
	if s.err != nil {
		return ""
	}
	return string(unquoteText(raw))
}

// rawString reads a string and returns the bytes between the quotes, with their escapes.
func (s *jsonScanner) rawString() []byte {
	if !s.expectByte('"') {
		return nil
	}

	start := s.pos
	for s.pos < len(s.text) {
		switch c := s.text[s.pos]; {
		case c == '"':
			raw := s.text[start:s.pos]
			s.pos++
			return raw
		case c == '\\':
			if !s.skipEscape() {
				return nil
			}
		case c < ' ':
			// Control characters must be escaped in JSON (RFC 8259, section 7).
			s.failAt("control character %#02x in a string", c)
			return nil
		default:
			s.pos++
		}
	}

	s.failAt("the text ends within a string")
	return nil
}

// skipEscape skips one backslash escape.
func (s *jsonScanner) skipEscape() bool {
	s.pos++
	if s.pos >= len(s.text) {
		s.failAt("the text ends within a string")
		return false
	}

	switch c := s.text[s.pos]; c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos++
	case 'u':
		// The digits are checked here, so that unquoteText need not check them again.
		for i := 1; i <= 4; i++ {
			if s.pos+i >= len(s.text) || hexDigit(s.text[s.pos+i]) < 0 {
				s.failAt(`\u must be followed by four hexadecimal digits`)
				return false
			}
		}
		s.pos += 5
	default:
		s.failAt(`escape \%c is not one of JSON's`, c)
		return false
	}

	return true
}

func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// viewText reads bytes as a string without copying; the string must not outlive them.
func viewText(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// unquoteText resolves escapes. Its argument has passed rawString; text without escapes is returned unchanged.
func unquoteText(raw []byte) []byte {
	first := 0
	for first < len(raw) && raw[first] != '\\' {
		first++
	}

	// Most strings have no escapes and need no copy.
	if first == len(raw) {
		return raw
	}

	// Escapes only shrink, so the raw length is enough capacity.
	out := append(make([]byte, 0, len(raw)), raw[:first]...)
	for i := first; i < len(raw); {
		if raw[i] != '\\' {
			out = append(out, raw[i])
			i++
			continue
		}

		if raw[i+1] == 'u' {
			r, n := unquoteRune(raw[i:])
			out = utf8.AppendRune(out, r)
			i += n
			continue
		}
		out = append(out, escapedByte(raw[i+1]))
		i += 2
	}
	return out
}

func escapedByte(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// unquoteRune decodes \uXXXX, or a surrogate pair of two, at raw's start. A lone surrogate becomes U+FFFD, as in
// encoding/json.
func unquoteRune(raw []byte) (rune, int) {
	r := hex4(raw[2:])

	// Outside the surrogates a UTF-16 unit is a character.
	if r < 0xd800 || r > 0xdfff {
		return r, 6
	}

	// A high surrogate forms a character with the low one directly after it.
	if r < 0xdc00 && len(raw) >= 12 && raw[6] == '\\' && raw[7] == 'u' {
		if low := hex4(raw[8:]); low >= 0xdc00 && low <= 0xdfff {
			return (r-0xd800)<<10 + (low - 0xdc00) + 0x10000, 12
		}
	}
	return utf8.RuneError, 6
}

func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		r = r<<4 | rune(hexDigit(c))
	}
	return r
}

// appendQuoted appends text as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func appendQuoted(dst []byte, text []byte) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')

	for len(text) > 0 {
		c := text[0]
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < ' ' || c == '<' || c == '>' || c == '&':
			// Escape as encoding/json does, so that an answer is harmless within HTML.
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		case c < utf8.RuneSelf:
			dst = append(dst, c)
		default:
			r, n := utf8.DecodeRune(text)
			dst = utf8.AppendRune(dst, r)
			text = text[n:]
			continue
		}
		text = text[1:]
	}
	return append(dst, '"')
}
