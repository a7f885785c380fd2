package repo

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits on the memory that a config.pbtxt can take.
const (
	configBytesMax = 1 << 20
	nestingMax     = 32
	fieldsMax      = 1 << 13 // values, over all messages
)

// pos is a position in a text file. Lines and columns count from 1; columns count bytes.
type pos struct{ line, column int }

// SyntaxError reports that a config.pbtxt is not text protobuf, or that it holds a value that is not allowed.
type SyntaxError struct {
	File         string
	Line, Column int // from 1; column in bytes
	Field        string
	Value        string
	Problem      string // what is wrong and what is allowed
}

// Error reads "config.pbtxt:3:17: max_batch_size: -1: want an integer from 0 to 4096".
func (e *SyntaxError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d:%d: ", e.File, e.Line, e.Column)
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	if e.Value != "" {
		b.WriteString(e.Value + ": ")
	}
	b.WriteString(e.Problem)
	return b.String()
}

// message is one parsed text-protobuf message, with its fields in the order of the file.
type message struct {
	at     pos
	fields []field
}

// field is one occurrence of a field; a list `[a, b]` becomes two occurrences.
type field struct {
	name  string
	at    pos // of the name
	value value
}

// value is a nested message or a scalar.
type value struct {
	at   pos
	sub  *message // nil for a scalar
	kind tokenKind
	text string // a string's content, or a number or identifier as written
}

// showShort formats a value for an error, shortened.
func (v value) showShort() string {
	switch {
	case v.sub != nil:
		return "{…}"
	case v.kind == tokenString:
		return strconv.Quote(shortenText(v.text))
	}
	return shortenText(v.text)
}

func shortenText(s string) string {
	// Errors are logged and sent to clients, so they must not contain a value of a megabyte.
	if len(s) > 60 {
		return s[:60] + "…"
	}
	return s
}

// textParser turns the tokens of one file into messages.
type textParser struct {
	lex    lexer
	tok    token
	fields int // so far
}

// parseText parses a whole file as one message.
func parseText(file string, text []byte) (*message, error) {
	if len(text) > configBytesMax {
		return nil, &SyntaxError{File: file, Line: 1, Column: 1,
			Problem: fmt.Sprintf("the file has %d bytes; at most %d are allowed", len(text), configBytesMax)}
	}

	p := &textParser{lex: lexer{file: file, text: text, at: pos{1, 1}}}
	if err := p.nextToken(); err != nil {
		return nil, err
	}
	return p.readMessage(pos{1, 1}, "", 0)
}

func (p *textParser) nextToken() (err error) {
	p.tok, err = p.lex.nextToken()
	return err
}

func (p *textParser) failAt(at pos, format string, args ...any) error {
	return p.lex.failAt(at, format, args...)
}

// readMessage reads fields up to and including the closing symbol; "" means the file's end.
func (p *textParser) readMessage(at pos, closing string, depth int) (*message, error) {
	// The parser is recursive: without a limit, a file of braces would exhaust the stack.
	if depth > nestingMax {
		return nil, p.failAt(at, "messages nest deeper than %d", nestingMax)
	}

	m := &message{at: at}
	for {
		switch {
		case p.tok.kind == tokenEnd && closing == "":
			return m, nil
		case p.tok.kind == tokenEnd:
			return nil, p.failAt(p.tok.at, "the file ends before %q that closes the message opened at %d:%d", closing, at.line, at.column)
		case p.tok.isSymbol(closing) && closing != "":
			return m, p.nextToken()
		case p.tok.kind != tokenName:
			return nil, p.failAt(p.tok.at, "found %s; want a field name", p.tok.showText())
		}

		if err := p.readField(m, depth); err != nil {
			return nil, err
		}

		// Text protobuf allows a comma or a semicolon after any field.
		if p.tok.isSymbol(",") || p.tok.isSymbol(";") {
			if err := p.nextToken(); err != nil {
				return nil, err
			}
		}
	}
}

// readField reads `name: scalar`, `name: [..]`, `name {..}` or `name: {..}` into m.
func (p *textParser) readField(m *message, depth int) error {
	name, at := p.tok.text, p.tok.at
	if err := p.nextToken(); err != nil {
		return err
	}

	colon := p.tok.isSymbol(":")
	if colon {
		if err := p.nextToken(); err != nil {
			return err
		}
	}

	if p.tok.isSymbol("[") {
		return p.readList(m, name, at, colon, depth)
	}

	v, err := p.readValue(name, colon, depth)
	if err != nil {
		return err
	}
	return p.addField(m, field{name: name, at: at, value: v})
}

// addField appends a field to m. It counts fields, since an empty message of two bytes takes a hundred times as much
// memory.
func (p *textParser) addField(m *message, f field) error {
	if p.fields++; p.fields > fieldsMax {
		return p.failAt(f.at, "the file has more than %d fields", fieldsMax)
	}
	m.fields = append(m.fields, f)
	return nil
}

func (p *textParser) readList(m *message, name string, at pos, colon bool, depth int) error {
	open := p.tok.at
	if err := p.nextToken(); err != nil {
		return err
	}

	for first := true; !p.tok.isSymbol("]"); first = false {
		if !first {
			if !p.tok.isSymbol(",") {
				return p.failAt(p.tok.at, "found %s in the list of %s opened at %d:%d; want ',' or ']'", p.tok.showText(), name, open.line, open.column)
			}
			if err := p.nextToken(); err != nil {
				return err
			}
		}

		v, err := p.readValue(name, colon, depth)
		if err != nil {
			return err
		}

		// A list's elements become fields of one name, the same as repeated fields without brackets.
		if err := p.addField(m, field{name: name, at: at, value: v}); err != nil {
			return err
		}
	}
	return p.nextToken()
}

// readValue reads one scalar or message. Scalars need the colon, messages do not.
func (p *textParser) readValue(name string, colon bool, depth int) (value, error) {
	// A message in either kind of brackets.
	t := p.tok
	if t.isSymbol("{") || t.isSymbol("<") {
		closing := "}"
		if t.isSymbol("<") {
			closing = ">"
		}
		if err := p.nextToken(); err != nil {
			return value{}, err
		}
		sub, err := p.readMessage(t.at, closing, depth+1)
		return value{at: t.at, sub: sub}, err
	}

	if !colon {
		return value{}, p.failAt(t.at, "found %s after %s; want ':' or '{'", t.showText(), name)
	}

	switch t.kind {
	case tokenName, tokenNumber:
		return value{at: t.at, kind: t.kind, text: t.text}, p.nextToken()
	case tokenString:
		var b strings.Builder
		for p.tok.kind == tokenString { // adjacent strings join
			b.WriteString(p.tok.text)
			if err := p.nextToken(); err != nil {
				return value{}, err
			}
		}

		// Names go into messages and metrics, which take no other texts. protobuf's strings are UTF-8, too.
		v := value{at: t.at, kind: tokenString, text: b.String()}
		if !utf8.ValidString(v.text) {
			return v, p.failAt(t.at, "%s: %s: want UTF-8", name, v.showShort())
		}
		return v, nil
	}
	return value{}, p.failAt(t.at, "found %s; want a value for %s", t.showText(), name)
}
