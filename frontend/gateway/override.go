package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"downbeat.dev/frontend"
)

// A call gives a model's configuration as JSON, a repository as protobuf's text format. The JSON is converted to text
// format, which backends read, so that the same rules check both.

// Bounds of a configuration in JSON.
const (
	configDepthMax  = 16      // nesting of messages and arrays
	configValuesMax = 1 << 13 // values of all messages together, as many as config.pbtxt may have fields
)

// Fields of a configuration whose JSON form does not determine their text form: maps are also objects, and enum
// values are strings.
var (
	configMaps = map[string]bool{"parameters": true, "inputs": true, "priority_queue_policy": true, "cc_model_filenames": true,
		"metric_tags": true, "input_map": true, "output_map": true, "string_state_map": true}
	configEnums = map[string]bool{"data_type": true, "kind": true, "format": true, "timeout_action": true, "source_value": true, "secondary_devices.kind": true}
	configInts  = map[string]bool{"dims": true, "shape": true, "versions": true, "default_timeout_microseconds": true, "max_queue_delay_microseconds": true,
		"priority_levels": true, "default_priority_level": true}
)

// configText converts a configuration from JSON to the text of a config.pbtxt.
func configText(text []byte) (string, error) {
	d := json.NewDecoder(bytes.NewReader(text))

	// Keep numbers as written: a float64 would lose digits of an int64.
	d.UseNumber()
	first, err := d.Token()
	if err != nil {
		return "", jsonError(d, err)
	}
	if first != json.Delim('{') {
		return "", fmt.Errorf("JSON: %v: want an object", first)
	}

	var out strings.Builder
	w := configWriter{d: d, out: &out}
	if err := w.eachMember(0, w.writeField); err != nil {
		return "", jsonError(d, err)
	}

	// The decoder would leave text after the object unread.
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("JSON at byte %d: want the end", d.InputOffset())
	}
	out.WriteByte('\n') // an empty configuration is also a configuration
	return out.String(), nil
}

func jsonError(d *json.Decoder, err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("JSON at byte %d: %w", d.InputOffset(), err)
}

// configWriter writes a decoder's JSON as text format.
type configWriter struct {
	d      *json.Decoder
	out    *strings.Builder
	values int // begun so far
}

// eachMember calls f for each key of an object whose opening brace was read, and reads its end.
func (w *configWriter) eachMember(depth int, f func(depth int, key string) error) error {
	if depth > configDepthMax {
		return fmt.Errorf("more than %d messages deep", configDepthMax)
	}
	for w.d.More() {
		key, err := w.d.Token()
		if err != nil {
			return err
		}
		if err := f(depth, key.(string)); err != nil {
			return err
		}
	}
	_, err := w.d.Token()
	return err
}

// writeField writes one field of a message.
func (w *configWriter) writeField(depth int, key string) error {
	name := snakeCase(key)
	if name == "" {
		return fmt.Errorf("%q: want a field's name", key)
	}
	return w.writeValue(depth, name, configMaps[name])
}

// writeValue writes a field for each value: an array has several.
func (w *configWriter) writeValue(depth int, name string, isMap bool) error {
	// Each value costs a token and a field's name, and each array a nested call.
	if w.values++; w.values > configValuesMax {
		return fmt.Errorf("more than %d values", configValuesMax)
	}
	if depth > configDepthMax {
		return fmt.Errorf("more than %d arrays deep", configDepthMax)
	}

	token, err := w.d.Token()
	if err != nil {
		return err
	}

	switch v := token.(type) {
	case json.Delim:
		switch {
		case v == '[':
			// Text format repeats a field for each value of an array.
			for w.d.More() {
				if err := w.writeValue(depth+1, name, false); err != nil {
					return err
				}
			}
			_, err := w.d.Token()
			return err
		case isMap:
			return w.eachMember(depth+1, func(depth int, key string) error { return w.writeEntry(depth, name, key) })
		}

		fmt.Fprintf(w.out, "%s {\n", name)
		if err := w.eachMember(depth+1, w.writeField); err != nil {
			return err
		}
		w.out.WriteString("}\n")

	case nil: // as if it were absent
	case string:
		w.writeText(name, v)
	default:
		// Numbers and booleans look alike in both formats.
		fmt.Fprintf(w.out, "%s: %v\n", name, v)
	}
	return nil
}

// writeEntry writes one entry of a map.
func (w *configWriter) writeEntry(depth int, name, key string) error {
	if name == "priority_queue_policy" { // its keys are numbers
		if _, err := strconv.ParseUint(key, 10, 64); err != nil {
			return fmt.Errorf("%s: %q: want a whole number", name, key)
		}
		fmt.Fprintf(w.out, "%s { key: %s\n", name, key)
	} else {
		fmt.Fprintf(w.out, "%s { key: %s\n", name, quoteText(key))
	}
	if err := w.writeValue(depth, "value", false); err != nil {
		return err
	}
	w.out.WriteString("}\n")
	return nil
}

// writeText writes a string as a string, or as the enum or number that protobuf's JSON encodes as a string.
func (w *configWriter) writeText(name, v string) {
	// JSON does not distinguish enums and 64-bit numbers from strings: the field's name decides.
	_, err := strconv.ParseInt(v, 10, 64)
	if configEnums[name] && isIdentifier(v) || configInts[name] && err == nil {
		fmt.Fprintf(w.out, "%s: %s\n", name, v)
		return
	}
	fmt.Fprintf(w.out, "%s: %s\n", name, quoteText(v))
}

// quoteText quotes a string for text format, with every unprintable byte escaped.
func quoteText(v string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(v) {
		switch c := v[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < 0x20 || c == 0x7f:
			// Always three octal digits, so that a following digit is not read as part of the escape.
			fmt.Fprintf(&b, "\\%03o", c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// snakeCase returns a field's name as in the proto, given that name or protobuf's JSON name; empty if key is not a
// name.
func snakeCase(key string) string {
	var b strings.Builder
	for i := range len(key) {
		c := key[i]
		if c >= 'A' && c <= 'Z' {
			b.WriteByte('_')
			c += 'a' - 'A'
		}
		b.WriteByte(c)
	}

	// A key that is not a name could inject other fields into the text.
	if name := b.String(); isIdentifier(name) {
		return name
	}
	return ""
}

// isIdentifier reports whether a text is a valid name in text format.
func isIdentifier(v string) bool {
	for i := range len(v) {
		c := v[i]
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return v != ""
}

// addFile adds a file to an override.
func addFile(o *frontend.Override, path string, content []byte) {
	if o.Files == nil {
		o.Files = map[string][]byte{}
	}
	o.Files[path] = content
}
