package repo

import (
	"fmt"
	"strconv"
	"strings"
)

// Limits on what a config.pbtxt can make us hold.
const (
	configBytesMax = 1 << 20
	nestingMax     = 32
)

// pos is a place in a text file, both counted from 1; columns count bytes.
type pos struct{ line, column int }

// SyntaxError is a config.pbtxt that is not text protobuf, or holds a value that is not allowed.
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

// message is one parsed text-protobuf message: its fields in the order of the file.
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

// show renders a value for an error, shortened.
func (v value) show() string {
	switch {
	case v.sub != nil:
		return "{…}"
	case v.kind == tokenString:
		return strconv.Quote(shorten(v.text))
	}
	return shorten(v.text)
}

func shorten(s string) string {
	if len(s) > 60 {
		return s[:60] + "…"
	}
	return s
}

// textParser turns tokens into messages. One use per file.
type textParser struct {
	lex lexer
	tok token
}

// parseText parses a whole file as one message.
func parseText(file string, text []byte) (*message, error) {
	if len(text) > configBytesMax {
		return nil, &SyntaxError{File: file, Line: 1, Column: 1,
			Problem: fmt.Sprintf("the file has %d bytes; at most %d are allowed", len(text), configBytesMax)}
	}
	p := &textParser{lex: lexer{file: file, text: text, at: pos{1, 1}}}
	if err := p.next(); err != nil {
		return nil, err
	}
	return p.message(pos{1, 1}, "", 0)
}

func (p *textParser) next() (err error) {
	p.tok, err = p.lex.next()
	return err
}

func (p *textParser) fail(at pos, format string, args ...any) error {
	return p.lex.fail(at, format, args...)
}

// message reads fields until the closing symbol, which it consumes; "" stands for the file's end.
func (p *textParser) message(at pos, closing string, depth int) (*message, error) {
	if depth > nestingMax {
		return nil, p.fail(at, "messages nest deeper than %d", nestingMax)
	}
	m := &message{at: at}
	for {
		switch {
		case p.tok.kind == tokenEnd && closing == "":
			return m, nil
		case p.tok.kind == tokenEnd:
			return nil, p.fail(p.tok.at, "the file ends before %q that closes the message opened at %d:%d", closing, at.line, at.column)
		case p.tok.is(closing) && closing != "":
			return m, p.next()
		case p.tok.kind != tokenName:
			return nil, p.fail(p.tok.at, "found %s; want a field name", p.tok.show())
		}
		if err := p.field(m, depth); err != nil {
			return nil, err
		}
		if p.tok.is(",") || p.tok.is(";") {
			if err := p.next(); err != nil {
				return nil, err
			}
		}
	}
}

// field reads `name: scalar`, `name: [..]`, `name {..}` or `name: {..}` into m.
func (p *textParser) field(m *message, depth int) error {
	name, at := p.tok.text, p.tok.at
	if err := p.next(); err != nil {
		return err
	}
	colon := p.tok.is(":")
	if colon {
		if err := p.next(); err != nil {
			return err
		}
	}
	if p.tok.is("[") {
		return p.list(m, name, at, colon, depth)
	}
	v, err := p.value(name, colon, depth)
	if err != nil {
		return err
	}
	m.fields = append(m.fields, field{name: name, at: at, value: v})
	return nil
}

func (p *textParser) list(m *message, name string, at pos, colon bool, depth int) error {
	open := p.tok.at
	if err := p.next(); err != nil {
		return err
	}
	for first := true; !p.tok.is("]"); first = false {
		if !first {
			if !p.tok.is(",") {
				return p.fail(p.tok.at, "found %s in the list of %s opened at %d:%d; want ',' or ']'", p.tok.show(), name, open.line, open.column)
			}
			if err := p.next(); err != nil {
				return err
			}
		}
		v, err := p.value(name, colon, depth)
		if err != nil {
			return err
		}
		m.fields = append(m.fields, field{name: name, at: at, value: v})
	}
	return p.next()
}

// value reads one scalar or message. Scalars need the colon, messages may go without.
func (p *textParser) value(name string, colon bool, depth int) (value, error) {
	t := p.tok
	if t.is("{") || t.is("<") {
		closing := map[string]string{"{": "}", "<": ">"}[t.text]
		if err := p.next(); err != nil {
			return value{}, err
		}
		sub, err := p.message(t.at, closing, depth+1)
		return value{at: t.at, sub: sub}, err
	}
	if !colon {
		return value{}, p.fail(t.at, "found %s after %s; want ':' or '{'", t.show(), name)
	}
	switch t.kind {
	case tokenName, tokenNumber:
		return value{at: t.at, kind: t.kind, text: t.text}, p.next()
	case tokenString:
		var b strings.Builder
		for p.tok.kind == tokenString { // adjacent strings join
			b.WriteString(p.tok.text)
			if err := p.next(); err != nil {
				return value{}, err
			}
		}
		return value{at: t.at, kind: tokenString, text: b.String()}, nil
	}
	return value{}, p.fail(t.at, "found %s; want a value for %s", t.show(), name)
}
