package repo

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tokenEnd tokenKind = iota
	tokenName
	tokenNumber // with its sign, as written
	tokenString // unquoted
	tokenSymbol // one of : { } < > [ ] , ;
)

type token struct {
	kind tokenKind
	text string
	at   pos
}

// isSymbol reports whether t is the given symbol, not a string or name with the same text.
func (t token) isSymbol(symbol string) bool { return t.kind == tokenSymbol && t.text == symbol }

func (t token) showText() string {
	switch t.kind {
	case tokenEnd:
		return "the end of the file"
	case tokenString:
		return strconv.Quote(shortenText(t.text))
	}
	return fmt.Sprintf("'%s'", shortenText(t.text))
}

// lexer splits text protobuf into tokens and tracks its position.
type lexer struct {
	file string
	text []byte
	i    int
	at   pos
}

func (l *lexer) failAt(at pos, format string, args ...any) error {
	return &SyntaxError{File: l.file, Line: at.line, Column: at.column, Problem: fmt.Sprintf(format, args...)}
}

// peekByte returns the byte at the cursor, 0 at the end.
func (l *lexer) peekByte() byte {
	if l.i < len(l.text) {
		return l.text[l.i]
	}
	return 0
}

func (l *lexer) advanceByte() {
	if l.text[l.i] == '\n' {
		l.at = pos{l.at.line + 1, 1}
	} else {
		l.at.column++
	}
	l.i++
}

func (l *lexer) skipBlank() {
	for l.i < len(l.text) {
		switch l.text[l.i] {
		case ' ', '\t', '\r', '\n', '\v', '\f':
			l.advanceByte()
		case '#':
			for l.i < len(l.text) && l.text[l.i] != '\n' {
				l.advanceByte()
			}
		default:
			return
		}
	}
}

func (l *lexer) nextToken() (token, error) {
	l.skipBlank()
	at := l.at
	if l.i >= len(l.text) {
		return token{kind: tokenEnd, at: at}, nil
	}

	// The first byte decides the kind of the token.
	c := l.peekByte()
	switch {
	case isLetter(c):
		return token{tokenName, l.takeWhile(isNameByte), at}, nil
	case isDigit(c) || c == '.':
		return l.readNumber(at, "")
	case c == '-':
		l.advanceByte()
		l.skipBlank()
		if isLetter(l.peekByte()) { // -inf, -nan
			return token{tokenNumber, "-" + l.takeWhile(isNameByte), at}, nil
		}
		return l.readNumber(at, "-")
	case c == '"' || c == '\'':
		return l.readQuoted(at, c)
	case isSymbol(c):
		l.advanceByte()
		return token{tokenSymbol, string(c), at}, nil
	}

	r, _ := utf8.DecodeRune(l.text[l.i:])
	return token{}, l.failAt(at, "unexpected character %q", r)
}

func (l *lexer) takeWhile(ok func(byte) bool) string {
	start := l.i
	for l.i < len(l.text) && ok(l.text[l.i]) {
		l.advanceByte()
	}
	return string(l.text[start:l.i])
}

// readNumber reads digits, letters and dots, and the sign of an exponent. The decoder of the field validates them.
func (l *lexer) readNumber(at pos, sign string) (token, error) {
	start := l.i
	for l.i < len(l.text) {
		c := l.text[l.i]
		// In 0x1e-3 the e is a digit, and the minus is not part of the number.
		exponent := (c == '-' || c == '+') && l.i > start && (l.text[l.i-1] == 'e' || l.text[l.i-1] == 'E') && !isHex(l.text[start:l.i])
		if !isNameByte(c) && c != '.' && !exponent {
			break
		}
		l.advanceByte()
	}

	if l.i == start {
		return token{}, l.failAt(at, "'-' is not followed by a number")
	}
	return token{tokenNumber, sign + string(l.text[start:l.i]), at}, nil
}

// readQuoted reads a string in either quote with C escapes.
func (l *lexer) readQuoted(at pos, quote byte) (token, error) {
	l.advanceByte()

	var out []byte
	for {
		// Text protobuf has no multi-line strings, so report an open quote on its own line.
		if l.i >= len(l.text) || l.peekByte() == '\n' {
			return token{}, l.failAt(at, "the string is not closed before the end of its line")
		}

		c := l.peekByte()
		l.advanceByte()
		switch c {
		case quote:
			return token{tokenString, string(out), at}, nil
		case '\\':
			b, err := l.readEscape()
			if err != nil {
				return token{}, err
			}
			out = append(out, b...)
		default:
			out = append(out, c)
		}
	}
}

// readEscape reads the characters after a backslash.
func (l *lexer) readEscape() ([]byte, error) {
	at, c := l.at, l.peekByte()
	if l.i >= len(l.text) {
		return nil, l.failAt(at, "the file ends in an escape")
	}

	switch {
	case c >= '0' && c <= '7':
		return l.readCodepoint(at, 3, 8, false)
	case c == 'x' || c == 'X':
		l.advanceByte()
		return l.readCodepoint(at, 2, 16, false)
	case c == 'u' || c == 'U':
		l.advanceByte()
		return l.readCodepoint(at, map[byte]int{'u': 4, 'U': 8}[c], 16, true)
	}

	simple := map[byte]byte{'a': '\a', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', 'v': '\v', '?': '?', '\\': '\\', '\'': '\'', '"': '"'}
	b, ok := simple[c]
	if !ok {
		return nil, l.failAt(at, "unknown escape '\\%c'", c)
	}
	l.advanceByte()
	return []byte{b}, nil
}

// readCodepoint reads up to digits digits of the base and returns a byte, or UTF-8 if unicode is set.
func (l *lexer) readCodepoint(at pos, digits, base int, unicode bool) ([]byte, error) {
	start := l.i
	for l.i < len(l.text) && l.i-start < digits {
		// Read digit by digit: an octal or hexadecimal escape may be shorter than digits.
		if _, err := strconv.ParseUint(string(l.text[l.i]), base, 8); err != nil {
			break
		}
		l.advanceByte()
	}

	n, err := strconv.ParseUint(string(l.text[start:l.i]), base, 32)
	switch {
	case err != nil || unicode && l.i-start != digits:
		return nil, l.failAt(at, "the escape has too few digits")
	case unicode && !utf8.ValidRune(rune(n)):
		return nil, l.failAt(at, "the escape is not a Unicode character")
	case unicode:
		return utf8.AppendRune(nil, rune(n)), nil
	case n > 0xff:
		return nil, l.failAt(at, "the escape is beyond one byte")
	}
	return []byte{byte(n)}, nil
}

func isLetter(c byte) bool   { return c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' }
func isDigit(c byte) bool    { return c >= '0' && c <= '9' }
func isNameByte(c byte) bool { return isLetter(c) || isDigit(c) }

func isSymbol(c byte) bool {
	switch c {
	case ':', '{', '}', '<', '>', '[', ']', ',', ';':
		return true
	}
	return false
}

// isHex reports whether the beginning of a number is hexadecimal, so that e is a digit.
func isHex(s []byte) bool { return len(s) > 1 && s[0] == '0' && s[1]|0x20 == 'x' }
