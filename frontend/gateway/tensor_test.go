package gateway

import (
	"math"
	"strings"
	"testing"

	"downbeat.dev/core/model"
)

func TestHalfRoundTrip(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		f := fromHalf(h)
		if math.IsNaN(f) {
			continue
		}
		if got := toHalf(f); got != h {
			t.Fatalf("toHalf(fromHalf(%#04x) = %v) = %#04x", h, f, got)
		}
	}
	for _, c := range []struct {
		f float64
		h uint16
	}{{65519.99, 0x7bff}, {65520, 0x7c00}, {1 + 1.0/2048, 0x3c00}, {1 + 3.0/2048, 0x3c02}, {0x1p-25, 0}, {0x1.8p-25, 1}} {
		if got := toHalf(c.f); got != c.h {
			t.Errorf("toHalf(%v) = %#04x, want %#04x", c.f, got, c.h)
		}
	}
}

func TestTensorJSONRoundTrip(t *testing.T) {
	for _, c := range []struct {
		datatype model.Datatype
		in, out  string
	}{
		{"FP32", "[1, -2.5, [3e2, 0.1]]", "[1,-2.5,300,0.1]"},
		{"FP64", "[0.1, 1e300]", "[0.1,1e+300]"},
		{"FP16", "[1, 65504, 0.5]", "[1,65504,0.5]"},
		{"BF16", "[1, 2]", "[1,2]"},
		{"INT8", "[[-128],[127]]", "[-128,127]"},
		{"UINT8", "[0,255]", "[0,255]"},
		{"INT16", "[-32768]", "[-32768]"},
		{"UINT16", "[65535]", "[65535]"},
		{"INT32", "[-2147483648]", "[-2147483648]"},
		{"UINT32", "[4294967295]", "[4294967295]"},
		{"INT64", "[-9223372036854775808]", "[-9223372036854775808]"},
		{"UINT64", "[18446744073709551615]", "[18446744073709551615]"},
		{"BOOL", "[true, false, 1, 0]", "[true,false,true,false]"},
		{"BYTES", `["a", "", "\u00e9\n\ud83d\ude00\""]`, "[\"a\",\"\",\"é\\u000a😀\\\"\"]"},
		{"FP32", "[]", "[]"},
	} {
		s := &jsonScanner{text: []byte(c.in)}
		raw := s.tensorData(nil, c.datatype, 1<<20, 0)
		s.expectEnd()
		if s.err != nil {
			t.Errorf("%s %s: %v", c.datatype, c.in, s.err)
			continue
		}
		if got := string(appendTensor(nil, raw, c.datatype)); got != c.out {
			t.Errorf("%s %s: %s, want %s", c.datatype, c.in, got, c.out)
		}
	}
}

func TestTensorJSONRefuses(t *testing.T) {
	for _, c := range []struct {
		datatype model.Datatype
		in, want string
	}{
		{"INT8", "[128]", "128 is not a value of INT8"}, {"UINT8", "[-1]", "-1 is not a value of UINT8"}, {"UINT8", "[256]", "256 is not a value of UINT8"},
		{"INT32", "[1.5]", "1.5 is not a value of INT32"}, {"INT64", "[9223372036854775808]", "9223372036854775808 is not a value of INT64"},
		{"UINT64", "[-1]", "-1 is not a value of UINT64"}, {"FP32", "[1e39]", "1e39 is not a value of FP32"}, {"FP16", "[65520]", "65520 is not a value of FP16"},
		{"BOOL", "[2]", "2 is not a value of BOOL"}, {"BOOL", "[null]", "'n' where a number must be"}, {"FP32", "[NaN]", "'N' where a number must be"},
		{"FP32", `["1"]`, `'"' where a number must be`}, {"BYTES", "[1]", `'1' where '"' must be`}, {"FP32", "[1,]", "']' where a number must be"},
		{"FP32", "[01]", "'0' where a number must be"}, {"FP32", "[1", "the text ends where ']' must be"}, {"FP32", "1", "'1' where '[' must be"},
		{"FP32", "[+1]", "'+' where a number must be"},
	} {
		s := &jsonScanner{text: []byte(c.in)}
		s.tensorData(nil, c.datatype, 1<<20, 0)
		s.expectEnd()
		if s.err == nil || !strings.Contains(s.err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %q in it", c.datatype, c.in, s.err, c.want)
		}
	}
}
