package repo

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// rule says how a field is read. A nil read accepts the field and ignores it.
type rule struct {
	read     func(value) error
	repeated bool
}

type rules map[string]rule

// ignored is a field that Triton has and Downbeat does not act on.
var ignored = rule{repeated: true}

// decoder turns parsed messages into our structs; it makes every error carry its place.
type decoder struct{ file string }

func (d *decoder) fail(v value, field, format string, args ...any) error {
	e := &SyntaxError{File: d.file, Line: v.at.line, Column: v.at.column, Field: field, Problem: fmt.Sprintf(format, args...)}
	if v.sub == nil && (v.kind != tokenEnd) {
		e.Value = v.show()
	}
	return e
}

// decode applies rules to a message's fields. where is the message's own path for errors; parent is
// given for nested messages, whose value may turn out to be a scalar.
func (d *decoder) decode(m *message, where string, known rules, parent ...value) error {
	if m == nil {
		return d.fail(parent[0], where, "want a message in braces")
	}
	seen := map[string]bool{}
	for _, f := range m.fields {
		path := f.name
		if where != "" {
			path = where + "." + f.name
		}
		r, ok := known[f.name]
		switch {
		case !ok:
			return d.fail(value{at: f.at}, path, "unknown field; want one of %s", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		case seen[f.name] && !r.repeated:
			return d.fail(value{at: f.at}, path, "is there twice; want it once")
		}
		seen[f.name] = true
		if r.read == nil {
			continue
		}
		if err := r.read(f.value); err != nil {
			return named(err, path)
		}
	}
	return nil
}

// named gives an error its field's path where the reader did not know it.
func named(err error, path string) error {
	if e, ok := err.(*SyntaxError); ok && e.Field == "" {
		e.Field = path
	}
	return err
}

func (m *message) find(name string) (value, bool) {
	for _, f := range m.fields {
		if f.name == name {
			return f.value, true
		}
	}
	return value{}, false
}

func (d *decoder) text(out *string) func(value) error {
	return func(v value) error {
		if v.sub != nil || v.kind != tokenString {
			return d.fail(v, "", "want a string in quotes")
		}
		*out = v.text
		return nil
	}
}

// fileName reads a name that must stay within its directory.
func (d *decoder) fileName(out *string) func(value) error {
	return func(v value) error {
		if err := d.text(out)(v); err != nil {
			return err
		}
		if !filepath.IsLocal(*out) || strings.ContainsRune(*out, 0) {
			return d.fail(v, "", "want a file name within the model's directory")
		}
		return nil
	}
}

// int64 reads an integer: decimal, octal with a leading 0, or hexadecimal with 0x.
func (d *decoder) int64(v value) (int64, error) {
	if v.sub != nil || v.kind != tokenNumber || strings.Contains(v.text, "_") {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseInt(v.text, 0, 64)
}

func (d *decoder) integer(out *int, least, most int) func(value) error {
	return func(v value) error {
		n, err := d.int64(v)
		if err != nil || n < int64(least) || n > int64(most) {
			return d.fail(v, "", "want an integer from %d to %d", least, most)
		}
		*out = int(n)
		return nil
	}
}

const listMax = 4096

func (d *decoder) integers(out *[]int, least, most int) func(value) error {
	return func(v value) error {
		var n int
		if err := d.integer(&n, least, most)(v); err != nil {
			return err
		}
		if len(*out) == listMax {
			return d.fail(v, "", "the list has more than %d entries", listMax)
		}
		*out = append(*out, n)
		return nil
	}
}

func (d *decoder) enum(out *string, allowed ...string) func(value) error {
	return func(v value) error {
		if v.sub != nil || v.kind != tokenName || !slices.Contains(allowed, v.text) {
			return d.fail(v, "", "want one of %s", strings.Join(allowed, ", "))
		}
		*out = v.text
		return nil
	}
}

func (d *decoder) mustBeFalse(why string) func(value) error {
	return func(v value) error {
		switch v.text {
		case "false", "False", "f", "0":
			return nil
		case "true", "True", "t", "1":
			return d.fail(v, "", "%s", why)
		}
		return d.fail(v, "", "want true or false")
	}
}

func (d *decoder) refuse(why string) func(value) error {
	return func(v value) error { return d.fail(v, "", "%s", why) }
}

// parseFloat reads a decimal number; text protobuf's trailing f and inf or nan are refused.
func parseFloat(s string) (float64, error) {
	if strings.ContainsAny(s, "_xXnN") {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseFloat(strings.TrimSpace(s), 64)
}
