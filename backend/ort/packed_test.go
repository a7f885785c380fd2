//go:build cgo

package ort

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
)

// words returns a model that takes two words and three numbers. It returns each word doubled, each word's place in a
// list, and the numbers unchanged.
func words(t testing.TB, batchMax int) *device.Model {
	g := onnx.NewBuilder("words")
	text := g.Input("text", onnx.String, onnx.Batched(2))
	count := g.Input("count", onnx.Int32, onnx.Batched(3))
	g.Output("twice", g.Node("Concat", []string{text, text}, onnx.Int("axis", 1)), onnx.String, onnx.Batched(4))
	g.Output("copy", g.Node("Identity", []string{count}), onnx.Int32, onnx.Batched(3))
	in := []model.Tensor{tensor("text", "BYTES", 2), tensor("count", "INT32", 3)}
	out := []model.Tensor{tensor("twice", "BYTES", 4), tensor("copy", "INT32", 3)}
	return layout(t, writeModel(t, "words", batchMax, g, in, out))
}

func payload(numbers string, texts ...string) string {
	var b []byte
	for _, s := range texts {
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...)
	}
	return string(b) + numbers
}

func TestBytes(t *testing.T) {
	m := words(t, 4)
	e := openRuntime(t).Executor()
	defer e.Close()
	slots := devicetest.Slots(t, 2, device.SlotBytes([]*device.Model{m}))
	if err := devicetest.Load(e, m, slots); err != nil {
		t.Fatal(err)
	}
	const none = "\x00no output"
	large := strings.Repeat("x", m.OutBytes/2)
	for name, batch := range map[string][][2]string{
		"one":     {{payload("123456789012", "word", "ⅻ"), payload("123456789012", "word", "ⅻ", "word", "ⅻ")}},
		"empty":   {{payload("abcdefghijkl", "", ""), payload("abcdefghijkl", "", "", "", "")}},
		"several": {{payload("aaaaaaaaaaaa", "a", "b"), payload("aaaaaaaaaaaa", "a", "b", "a", "b")}, {payload("cccccccccccc", "cc", "dd"), payload("cccccccccccc", "cc", "dd", "cc", "dd")}},
		"bad rows harm no other": {
			{"", none},
			{payload("aaaaaaaaaaaa", "a", "b"), payload("aaaaaaaaaaaa", "a", "b", "a", "b")},
			{payload("aaaaaaaaaaaa", "a"), none},
			{payload("aaaaaaaaaaaa", "c", "d"), payload("aaaaaaaaaaaa", "c", "d", "c", "d")},
		},
		"cut":      {{payload("aaaaaaaaaaa", "a", "b"), none}, {"\xff\xff\xff\xffabc", none}},
		"tail":     {{payload("aaaaaaaaaaaaa", "a", "b"), none}},
		"no room":  {{payload("aaaaaaaaaaaa", large, ""), none}},
		"zeros":    {{payload("aaaaaaaaaaaa", "zero\x00byte", "\x00"), payload("aaaaaaaaaaaa", "zero\x00byte", "\x00", "zero\x00byte", "\x00")}},
		"not UTF8": {{payload("aaaaaaaaaaaa", "\xff", "b"), payload("aaaaaaaaaaaa", "\xff", "b", "\xff", "b")}},
	} {
		s := slots[1]
		for i, c := range batch {
			row, err := device.SetPacked(s.InputRow(m, 0, i), len(c[0]))
			if err != nil {
				t.Fatal(err)
			}
			copy(row, c[0])
		}
		if err := device.Execute(e, device.Batch{Model: m, Slot: s, Rows: len(batch)}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i, c := range batch {
			got, ok := device.Packed(s.OutputRow(m, 0, i))
			if ok != (c[1] != none) || ok && string(got) != c[1] {
				t.Errorf("%s, row %d: got %q %v, want %q", name, i, got, ok, c[1])
			}
		}
	}
}

// TestBytesToNumbers shows how text is classified: by a word's place in a list.
func TestBytesToNumbers(t *testing.T) {
	g := onnx.NewBuilder("label")
	text := g.Input("text", onnx.String, onnx.Batched(1))
	keys := onnx.Attr{Name: "keys_strings", Kind: onnx.AttrStrings, Strings: [][]byte{[]byte("no"), []byte("yes")}}
	g.Output("label", g.Node("LabelEncoder", []string{text}, keys, onnx.Ints("values_int64s", 10, 11), onnx.Int("default_int64", -1)), onnx.Int64, onnx.Batched(1))
	r := writeModel(t, "label", 8, g, []model.Tensor{tensor("text", "BYTES", 1)}, []model.Tensor{tensor("label", "INT64", 1)})
	rewrite(t, r.ONNXPath, func(m *onnx.Model) {
		m.Opsets = append(m.Opsets, onnx.Opset{Domain: "ai.onnx.ml", Version: 2})
		m.Graph.Nodes[0].Domain = "ai.onnx.ml"
	})
	m := layout(t, r)
	e := openRuntime(t).Executor()
	defer e.Close()
	slots := devicetest.Slots(t, 1, device.SlotBytes([]*device.Model{m}))
	if err := devicetest.Load(e, m, slots); err != nil {
		t.Fatal(err)
	}
	for i, s := range []string{"yes", "perhaps", "no"} {
		row, _ := device.SetPacked(slots[0].InputRow(m, 0, i), 4+len(s))
		copy(row, payload("", s))
	}
	if err := device.Execute(e, device.Batch{Model: m, Slot: slots[0], Rows: 3}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int64{11, -1, 10} {
		if got, ok := device.Packed(slots[0].OutputRow(m, 0, i)); !ok || len(got) != 8 || int64(binary.LittleEndian.Uint64(got)) != want {
			t.Errorf("row %d: %v %v, want %d", i, got, ok, want)
		}
	}
}

// numbers returns a model whose texts must be numbers.
func numbers(t testing.TB, batchMax int) *repo.Model {
	g := onnx.NewBuilder("numbers")
	text := g.Input("text", onnx.String, onnx.Batched(2))
	g.Output("number", g.Node("Cast", []string{text}, onnx.Int("to", int64(onnx.Float))), onnx.Float, onnx.Batched(2))
	return writeModel(t, "numbers", batchMax, g, []model.Tensor{tensor("text", "BYTES", 2)}, []model.Tensor{tensor("number", "FP32", 2)})
}

// TestTextsThatMustBeNumbers: such a model warms up without samples, and a text that is not a number fails only its
// own row.
func TestTextsThatMustBeNumbers(t *testing.T) {
	m := layout(t, numbers(t, 4))
	e := openRuntime(t).Executor()
	defer e.Close()
	slots := devicetest.Slots(t, 1, device.SlotBytes([]*device.Model{m}))
	if err := devicetest.Load(e, m, slots); err != nil {
		t.Fatal(err)
	}
	if len(m.Samples) != 1 || m.Samples[0].Name != `"0"` {
		t.Fatalf("samples %+v", m.Samples)
	}

	for i, s := range []string{payload("", "1", "-2.5"), payload("", "3", "none"), payload("", "4", "5")} {
		if err := m.WriteRow(slots[0], i, []byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	if err := device.Execute(e, device.Batch{Model: m, Slot: slots[0], Rows: 3}); err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]float32{{1, -2.5}, nil, {4, 5}} {
		got, ok := device.Packed(slots[0].OutputRow(m, 0, i))
		if ok != (want != nil) {
			t.Errorf("row %d: has an output: %v", i, ok)
		}
		for k, f := range want {
			if v := math.Float32frombits(binary.LittleEndian.Uint32(got[4*k:])); v != f {
				t.Errorf("row %d: %v, want %v", i, v, f)
			}
		}
	}

	// A single row, or all rows of a batch, fail as a batch.
	for i := range 2 {
		if err := m.WriteRow(slots[0], i, []byte(payload("", "x", "y"))); err != nil {
			t.Fatal(err)
		}
	}
	for rows := 1; rows <= 2; rows++ {
		if err := device.Execute(e, device.Batch{Model: m, Slot: slots[0], Rows: rows}); err == nil || !strings.Contains(err.Error(), "running Cast node") {
			t.Errorf("%d rows without a number: %v", rows, err)
		}
	}
}

// TestWarmUpSamples: the repository's samples run, and a sample that fails leaves the model loaded.
func TestWarmUpSamples(t *testing.T) {
	r := numbers(t, 4)
	for text, want := range map[string]string{"7": "", "seven": "running Cast node"} {
		r.Samples = []repo.Sample{{Name: "s", Row: []byte(payload("", text, text)), Batch: 3, Runs: 2}}
		m := layout(t, r)
		e := openRuntime(t).Executor()
		slots := devicetest.Slots(t, 1, device.SlotBytes([]*device.Model{m}))
		if _, err := e.Load(m); err != nil {
			t.Fatal(err)
		}
		if err := e.AddSlot(slots[0]); err != nil {
			t.Fatal(err)
		}
		if err := device.WarmUp(m, slots[0], 1, false, func(b device.Batch) error { return device.Execute(e, b) }); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q in it", text, err, want)
		}
		if err := m.WriteRow(slots[0], 0, []byte(payload("", "1", "2"))); err != nil {
			t.Fatal(err)
		}
		if err := device.Execute(e, device.Batch{Model: m, Slot: slots[0], Rows: 1}); err != nil {
			t.Errorf("%q: the model is not loaded: %v", text, err)
		}
		e.Close()
	}
}
