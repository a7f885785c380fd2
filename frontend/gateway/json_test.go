package gateway

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"downbeat.dev/core/model"
)

// FuzzJSON compares the scanner with encoding/json: both accept the same texts.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":[1,2,{"b":null}]}`, `[1e5,-0.1,true,false,"x\u00e9"]`, `{"a":1,}`, `[01]`, "\x00", `"\ud83d\ude00"`, `{"id":"x"} `, `-`, `1.`, `[1 2]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s := &jsonScanner{text: text}
		s.skipAny()
		s.expectEnd()
		ok := json.Valid(text)
		if s.err == nil && !ok {
			t.Fatalf("%q: taken, but it is not JSON", text)
		}
		if s.err != nil && ok && !strings.Contains(s.err.Error(), "deeper") {
			t.Fatalf("%q: %v, but it is JSON", text, s.err)
		}
	})
}

// FuzzJSONString compares string decoding and encoding with encoding/json.
func FuzzJSONString(f *testing.F) {
	for _, s := range []string{`"x"`, `"\u00e9"`, `"\ud83d\ude00"`, `"\ud83d"`, `"\ud83dx\udc00"`, `"\\\"\/\b\f\n\r\t"`, "\"\xff\"", `"\u0000"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !utf8.Valid(text) {
			return // the scanner keeps the bytes, encoding/json replaces them
		}
		s := &jsonScanner{text: text}
		got := s.readString()
		s.expectEnd()
		var want string
		if err := json.Unmarshal(text, &want); err != nil {
			if s.err == nil {
				t.Fatalf("%q: taken, encoding/json: %v", text, err)
			}
			return
		}
		if len(text) > 0 && text[0] == 'n' {
			return // null decodes into a string
		}
		if s.err != nil {
			t.Fatalf("%q: %v", text, s.err)
		}
		if got != want {
			t.Fatalf("%q: %q, encoding/json has %q", text, got, want)
		}
		var back string
		if err := json.Unmarshal(appendQuoted(nil, []byte(got)), &back); err != nil {
			t.Fatalf("%q: quoted badly: %v", got, err)
		}
	})
}

// FuzzTensorJSON checks that any text either fails or gives elements that print and parse back to the same bytes.
func FuzzTensorJSON(f *testing.F) {
	f.Add([]byte("[1,[2,3.5]]"), "FP32")
	f.Add([]byte(`["a","b\n"]`), "BYTES")
	f.Add([]byte("[true,0]"), "BOOL")
	f.Add([]byte("[65504,-1e-8]"), "FP16")
	f.Add([]byte("[18446744073709551615]"), "UINT64")
	f.Fuzz(func(t *testing.T, text []byte, name string) {
		datatype := model.Datatype(name)
		s := &jsonScanner{text: text}
		raw := s.tensorData(nil, datatype, 1<<16, 0)
		if s.err != nil || datatype == "BYTES" && strings.ContainsRune(string(raw), '\ufffd') {
			return
		}
		again := &jsonScanner{text: appendTensor(nil, raw, datatype)}
		back := again.tensorData(nil, datatype, 1<<17, 0)
		again.expectEnd()
		if again.err != nil {
			t.Fatalf("%s %q prints as %q: %v", datatype, text, again.text, again.err)
		}
		if datatype != "BYTES" && string(back) != string(raw) {
			t.Fatalf("%s %q: %x, then %x", datatype, text, raw, back)
		}
	})
}
