package model

import (
	"slices"
	"strings"
	"testing"
)

func TestDatatypesHaveSizesAndNames(t *testing.T) {
	bytes := map[Datatype]int{Bool: 1, Uint8: 1, Int8: 1, Uint16: 2, Int16: 2, FP16: 2, BF16: 2, Uint32: 4, Int32: 4, FP32: 4,
		Uint64: 8, Int64: 8, FP64: 8, Bytes: 0}
	if len(bytes) != len(Datatypes()) {
		t.Errorf("%d datatypes, want %d", len(Datatypes()), len(bytes))
	}
	for _, d := range Datatypes() {
		if size, ok := bytes[d]; !ok || d.Size() != size || !d.Known() {
			t.Errorf("%s: %d bytes, known %v, want %d", d, d.Size(), d.Known(), size)
		}
		if got, err := ParseDatatype(string(d)); got != d || err != nil {
			t.Errorf("parse %s: %s, %v", d, got, err)
		}
	}

	for _, name := range []string{"", "fp32", "TYPE_FP32", "STRING", strings.Repeat("FP32", 100)} {
		got, err := ParseDatatype(name)
		if err == nil || got.Known() || !strings.Contains(err.Error(), "UINT8") || len(err.Error()) > 250 {
			t.Errorf("parse %.10q: %q, %v, want an error that lists what is allowed", name, got, err)
		}
	}
}

func TestTensorsAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		tensor Tensor
		want   string // of the error; empty: the tensor is valid
	}{
		"a picture":            {Tensor{"x", Uint8, []int64{64, 96, 3}, nil, nil}, ""},
		"a scalar":             {Tensor{"x", FP32, nil, nil, nil}, ""},
		"the largest":          {Tensor{"x", FP64, []int64{TensorBytesMax / 8}, nil, nil}, ""},
		"one more":             {Tensor{"x", FP64, []int64{TensorBytesMax/8 + 1}, nil, nil}, "at most 1073741824 bytes"},
		"a product of 2^64":    {Tensor{"x", Bool, []int64{1 << 22, 1 << 21, 1 << 21}, nil, nil}, "at most"},
		"many texts":           {Tensor{"x", Bytes, []int64{1 << 20, 1 << 20}, nil, nil}, "at most"},
		"a variable dimension": {Tensor{"x", FP32, []int64{3, -1}, nil, nil}, "dimensions from 0 on"},
		"no element":           {Tensor{"x", FP32, []int64{3, 0}, nil, nil}, ""},
		"none of too many":     {Tensor{"x", FP32, []int64{0, TensorBytesMax / 2}, nil, nil}, "at most"},
		"no datatype":          {Tensor{"x", "float", []int64{1}, nil, nil}, `"x": datatype "float"`},
	} {
		err := c.tensor.Check()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestLayout walks one payload of every kind of tensor through the offsets.
func TestLayout(t *testing.T) {
	l, err := NewLayout([]Tensor{{"a", FP32, []int64{2, 3}, nil, nil}, {"b", Uint8, nil, nil, nil}, {"c", Int64, []int64{5}, nil, nil}})
	if err != nil || !slices.Equal(l.Offsets, []int{0, 24, 25}) || l.Bytes != 65 || l.Varies {
		t.Errorf("fixed sizes: %+v, %v", l, err)
	}
	l, err = NewLayout([]Tensor{{"a", FP32, []int64{2}, nil, nil}, {"b", Bytes, []int64{4}, nil, nil}, {"c", BF16, []int64{5}, nil, nil}})
	if err != nil || !slices.Equal(l.Offsets, []int{0, 8, 8}) || l.Bytes != 18 || !l.Varies {
		t.Errorf("with texts: %+v, %v", l, err)
	}
	if l, err = NewLayout(nil); err != nil || l.Bytes != 0 || l.Varies {
		t.Errorf("no tensors: %+v, %v", l, err)
	}

	half := Tensor{Name: "half", Datatype: Uint8, Shape: []int64{TensorBytesMax}}
	if _, err := NewLayout([]Tensor{half, half}); err == nil || !strings.Contains(err.Error(), "2 tensors: want at most 2147483647 bytes in all") {
		t.Errorf("2 GiB: %v, want an error that names the limit", err)
	}
	if _, err := NewLayout([]Tensor{half, {"x", "", nil, nil, nil}}); err == nil || !strings.Contains(err.Error(), `"x"`) {
		t.Errorf("a bad tensor: %v, want an error that names it", err)
	}
}

func TestTexts(t *testing.T) {
	packed := AppendText(AppendText(AppendText(nil, "one"), ""), "größer")
	if n, ok := CountTexts(packed); n != 3 || !ok {
		t.Errorf("%d texts, %v, want 3", n, ok)
	}
	if first, rest, ok := NextText(packed); string(first) != "one" || !ok || TextsBytes(packed, 1) != len(packed)-len(rest) {
		t.Errorf("the first: %q, %d bytes left, %v", first, len(rest), ok)
	}
	if n := TextsBytes(packed, 4); n != -1 {
		t.Errorf("four texts of three take %d bytes, want -1", n)
	}

	for cut := range packed {
		n, ok := CountTexts(packed[:cut])
		whole := cut == 0 || cut == TextsBytes(packed, 1) || cut == TextsBytes(packed, 2)
		if ok != whole || n != textsBefore(cut) {
			t.Errorf("cut at %d: %d texts, %v", cut, n, ok)
		}
	}
}

// textsBefore returns how many of TestTexts's texts end at or before a byte.
func textsBefore(at int) (n int) {
	for _, end := range []int{7, 11} {
		if at >= end {
			n++
		}
	}
	return n
}
