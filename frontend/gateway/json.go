package gateway

import (
	"fmt"
	"strconv"
)

// jsonDepthMax bounds nesting, so that a body of brackets cannot grow the stack.
const jsonDepthMax = 64

// jsonScanner reads one JSON text front to back without building a tree, so that tensors of a million numbers are
// parsed in place. After the first error every method returns at once.
type jsonScanner struct {
	text    []byte
	pos     int
	err     error
	refused *fault // the first fault passed to refuse
	// nonFinite accepts NaN, Infinity and -Infinity as numbers. They are not JSON, but Python's json writes them, and
	// so does Triton's client.
	nonFinite bool
}

func (s *jsonScanner) failAt(format string, args ...any) {
	// The first error is the cause; later ones follow from it.
	if s.err == nil {
		s.err = fmt.Errorf("JSON at byte %d: %s", s.pos, fmt.Sprintf(format, args...))
	}
}

// refuse keeps the first fault that is not nil: it says more than the scanner's position does.
func (s *jsonScanner) refuse(f *fault) {
	if f != nil && s.refused == nil {
		s.refused = f
		s.failAt("refused")
	}
}

// peekByte skips white space and returns the next byte, or 0 at the end.
func (s *jsonScanner) peekByte() byte {
	for s.pos < len(s.text) {
		switch c := s.text[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

func (s *jsonScanner) expectByte(c byte) bool {
	// peekByte returns 0 at the end, but a text may also hold a 0.
	if got := s.peekByte(); got != c || s.pos >= len(s.text) {
		s.failAt("%s where %q must be", s.describeNext(), c)
		return false
	}
	s.pos++
	return true
}

// describeNext describes the next byte for an error.
func (s *jsonScanner) describeNext() string {
	if s.pos >= len(s.text) {
		return "the text ends"
	}
	return fmt.Sprintf("%q", s.text[s.pos])
}

// eachField calls field for each member; field must consume the value. The key lies in the text: clone it to keep it.
func (s *jsonScanner) eachField(field func(key string)) {
	if !s.expectByte('{') {
		return
	}
	if s.peekByte() == '}' {
		s.pos++
		return
	}

	for s.err == nil {
		s.peekByte()
		key := viewText(unquoteText(s.rawString()))
		if s.err != nil || !s.expectByte(':') {
			return
		}

		field(key)
		if s.err != nil {
			return
		}

		// JSON has no comma before the end: a member must follow each comma.
		if s.peekByte() == ',' {
			s.pos++
			continue
		}
		s.expectByte('}')
		return
	}
}

// eachMember is eachField without members that are null: clients write null for an absent member.
func (s *jsonScanner) eachMember(field func(key string)) {
	s.eachField(func(key string) {
		// Only null begins with n.
		if s.peekByte() == 'n' {
			s.skipLiteral("null")
			return
		}
		field(key)
	})
}

// eachElement calls element for each element; element must consume it.
func (s *jsonScanner) eachElement(element func()) {
	if !s.expectByte('[') {
		return
	}
	if s.peekByte() == ']' {
		s.pos++
		return
	}

	for s.err == nil {
		element()
		if s.err != nil {
			return
		}

		if s.peekByte() == ',' {
			s.pos++
			continue
		}
		s.expectByte(']')
		return
	}
}

// readNumber reads a number by JSON's grammar and returns its text.
func (s *jsonScanner) readNumber() []byte {
	s.peekByte()
	start := s.pos
	if s.pos < len(s.text) && s.text[s.pos] == '-' {
		s.pos++
	}

	// A leading zero stands alone in JSON.
	whole := s.skipDigits()
	if whole == 0 || whole > 1 && s.text[s.pos-whole] == '0' {
		s.pos = start
		s.failAt("%s where a number must be", s.describeNext())
		return nil
	}

	// JSON wants digits on both sides of the point.
	if s.pos < len(s.text) && s.text[s.pos] == '.' {
		s.pos++
		if s.skipDigits() == 0 {
			s.failAt("%s where a digit must be", s.describeNext())
			return nil
		}
	}

	// The bit 0x20 makes a letter lower case: E also begins an exponent.
	if s.pos < len(s.text) && s.text[s.pos]|0x20 == 'e' {
		s.pos++
		if s.pos < len(s.text) && (s.text[s.pos] == '+' || s.text[s.pos] == '-') {
			s.pos++
		}
		if s.skipDigits() == 0 {
			s.failAt("%s where a digit must be", s.describeNext())
			return nil
		}
	}

	return s.text[start:s.pos]
}

func (s *jsonScanner) skipDigits() int {
	start := s.pos

	// A byte below '0' wraps around, so that one comparison is enough.
	for s.pos < len(s.text) && s.text[s.pos]-'0' <= 9 {
		s.pos++
	}
	return s.pos - start
}

// readInteger reads a number that must be a whole one within int64.
func (s *jsonScanner) readInteger() int64 {
	text := s.readNumber()
	if s.err != nil {
		return 0
	}
	n, err := strconv.ParseInt(viewText(text), 10, 64)
	if err != nil {
		s.failAt("%s where a whole number within 64 bits must be", text)
	}
	return n
}

// skipLiteral skips true, false or null.
func (s *jsonScanner) skipLiteral(word string) {
	s.peekByte()
	if len(s.text)-s.pos < len(word) || string(s.text[s.pos:s.pos+len(word)]) != word {
		s.failAt("%s where %s must be", s.describeNext(), word)
		return
	}
	s.pos += len(word)
}

// readBoolean reads true or false.
func (s *jsonScanner) readBoolean() bool {
	if s.peekByte() == 't' {
		s.skipLiteral("true")
		return s.err == nil
	}
	s.skipLiteral("false")
	return false
}

// skipAny skips one value of any kind, checks its grammar, and returns its text.
func (s *jsonScanner) skipAny() []byte {
	s.peekByte()

	start := s.pos
	s.skipValue(0)
	if s.err != nil {
		return nil
	}
	return s.text[start:s.pos]
}

func (s *jsonScanner) skipValue(depth int) {
	if depth > jsonDepthMax {
		s.failAt("nested deeper than %d", jsonDepthMax)
		return
	}

	switch s.peekByte() {
	case '{':
		s.eachField(func(string) { s.skipValue(depth + 1) })
	case '[':
		s.eachElement(func() { s.skipValue(depth + 1) })
	case '"':
		s.rawString()
	case 't':
		s.skipLiteral("true")
	case 'f':
		s.skipLiteral("false")
	case 'n':
		s.skipLiteral("null")
	default:
		if s.nonFinite && s.nonFiniteWord() != "" {
			return
		}
		s.readNumber()
	}
}

// nonFiniteWord reads a bare NaN, Infinity or -Infinity and returns it; "" if there is none.
func (s *jsonScanner) nonFiniteWord() string {
	s.peekByte()
	for _, word := range [...]string{"NaN", "Infinity", "-Infinity"} {
		if rest := s.text[s.pos:]; len(rest) >= len(word) && string(rest[:len(word)]) == word {
			s.pos += len(word)
			return word
		}
	}
	return ""
}

// expectEnd checks that only white space follows.
func (s *jsonScanner) expectEnd() {
	// A zero byte is not the end: check the position.
	if s.err == nil && (s.peekByte() != 0 || s.pos < len(s.text)) {
		s.failAt("%s after the end of the object", s.describeNext())
	}
}

// finish expects the end of the body, and returns its fault if it has one.
func (s *jsonScanner) finish() *fault {
	s.expectEnd()
	switch {
	case s.refused != nil:
		return s.refused
	case s.err != nil:
		return invalidFault("body: %v", s.err)
	}
	return nil
}
