package repo

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// rule defines how a field is read. A nil read accepts the field and warns why it has no effect.
type rule struct {
	read     func(value) error
	why      string
	repeated bool
}

type rules map[string]rule

// decoder turns parsed messages into Go structs and gives every error its place.
type decoder struct {
	file     string
	warnings *[]string
	variable bool // dimensions of -1 are allowed
}

// warningsMax bounds the warnings of one file.
const warningsMax = 64

// warnUnused warns, once, about a field that has no effect.
func (d *decoder) warnUnused(v value, field, why string) {
	text := fmt.Sprintf("%s:%d:%d: %s: read but not honoured: %s", d.file, v.at.line, v.at.column, field, why)
	if len(*d.warnings) < warningsMax && !slices.Contains(*d.warnings, text) {
		*d.warnings = append(*d.warnings, text)
	}
}

// ignoredField returns the rule of a field of Triton's that has no effect here, with the reason.
func (d *decoder) ignoredField(why string) rule { return rule{why: why, repeated: true} }

func (d *decoder) failAt(v value, field, format string, args ...any) error {
	e := &SyntaxError{File: d.file, Line: v.at.line, Column: v.at.column, Field: field, Problem: fmt.Sprintf(format, args...)}

	if v.sub == nil && (v.kind != tokenEnd) {
		e.Value = v.showShort()
	}
	return e
}

// decodeFields applies rules to a message's fields. where is the message's own path in errors. parent is given for
// nested messages, whose value may turn out to be a scalar.
func (d *decoder) decodeFields(m *message, where string, known rules, parent ...value) error {
	if m == nil {
		return d.failAt(parent[0], where, "want a message in braces")
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
			return d.failAt(value{at: f.at}, path, "unknown field; want one of %s", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		case seen[f.name] && !r.repeated:
			return d.failAt(value{at: f.at}, path, "is there twice; want it once")
		}

		// Warn once about a field without effect, however often it occurs.
		if r.read == nil {
			if !seen[f.name] {
				d.warnUnused(value{at: f.at}, path, r.why)
			}
			seen[f.name] = true
			continue
		}

		seen[f.name] = true
		if err := r.read(f.value); err != nil {
			return nameField(err, path)
		}
	}
	return nil
}

// nameField adds the field's path to an error whose reader did not know it.
func nameField(err error, path string) error {
	if e, ok := err.(*SyntaxError); ok && e.Field == "" {
		e.Field = path
	}
	return err
}

func (m *message) findField(name string) (value, bool) {
	for _, f := range m.fields {
		if f.name == name {
			return f.value, true
		}
	}
	return value{}, false
}

func (d *decoder) readText(out *string) func(value) error {
	return func(v value) error {
		if v.sub != nil || v.kind != tokenString {
			return d.failAt(v, "", "want a string in quotes")
		}
		*out = v.text
		return nil
	}
}

// fileName returns a reader of a file name that must stay within its directory.
func (d *decoder) fileName(out *string) func(value) error {
	return func(v value) error {
		if err := d.readText(out)(v); err != nil {
			return err
		}
		if !filepath.IsLocal(*out) || strings.ContainsRune(*out, 0) {
			return d.failAt(v, "", "want a file name within the model's directory")
		}
		return nil
	}
}

// int64 parses an integer: decimal, octal with a leading 0, or hexadecimal with 0x.
func (d *decoder) int64(v value) (int64, error) {
	// Go accepts underscores in numbers, text protobuf does not.
	if v.sub != nil || v.kind != tokenNumber || strings.Contains(v.text, "_") {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseInt(v.text, 0, 64)
}

func (d *decoder) readInteger(out *int, least, most int) func(value) error {
	return func(v value) error {
		n, err := d.int64(v)
		if err != nil || n < int64(least) || n > int64(most) {
			return d.failAt(v, "", "want an integer from %d to %d", least, most)
		}
		*out = int(n)
		return nil
	}
}

const listMax = 4096

func (d *decoder) readIntegers(out *[]int, least, most int) func(value) error {
	return func(v value) error {
		var n int
		if err := d.readInteger(&n, least, most)(v); err != nil {
			return err
		}
		if len(*out) == listMax {
			return d.failAt(v, "", "the list has more than %d entries", listMax)
		}
		*out = append(*out, n)
		return nil
	}
}

func (d *decoder) readEnum(out *string, allowed ...string) func(value) error {
	return func(v value) error {
		if v.sub != nil || v.kind != tokenName || !slices.Contains(allowed, v.text) {
			return d.failAt(v, "", "want one of %s", strings.Join(allowed, ", "))
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
			return d.failAt(v, "", "%s", why)
		}
		return d.failAt(v, "", "want true or false")
	}
}

func (d *decoder) refuseField(why string) func(value) error {
	return func(v value) error { return d.failAt(v, "", "%s", why) }
}

// parseFloat parses a decimal number. It refuses text protobuf's trailing f, and inf and nan.
func parseFloat(s string) (float64, error) {
	if strings.ContainsAny(s, "_xXnN") {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseFloat(strings.TrimSpace(s), 64)
}
