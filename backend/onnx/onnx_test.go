package onnx

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
	"google.golang.org/protobuf/encoding/protowire"
)

// sample returns a model with every kind of attribute and value.
func sample(t testing.TB) *Model {
	t.Helper()
	b := NewBuilder("g")
	x := b.Input("x", Float, Batched(3, 4))
	b.Input("open", Int64, []Dim{{Size: -1, Name: "n"}, {Size: -1}})
	w := b.Const(FloatTensor("w", []float32{1, 2, 3, 4}, 2, 2))
	b.Const(Tensor{Name: "names", Type: String, Dims: []int64{2}, Strings: [][]byte{[]byte("a"), {0xff}}})
	b.Const(Tensor{Name: "half", Type: Float16, Dims: []int64{2}, Raw: []byte{1, 2, 3, 4}})
	b.Const(Tensor{Name: "nibbles", Type: Int4, Dims: []int64{3}, Raw: []byte{0x21, 0x03}})
	b.Const(Tensor{Name: "far", Type: Float, Dims: []int64{9}, External: true})
	inner := &Graph{Name: "inner", Nodes: []Node{{Name: "i", Op: "Identity", Inputs: []string{x}, Outputs: []string{"o"}}}, Outputs: []Value{{Name: "o", Type: Float, Dims: []Dim{}}}}
	ft := FloatTensor("", []float32{7}, 1)
	y := b.Node("Thing", []string{x, "", w},
		Int("i", -5), FloatAttr("f", 1.5), Text("s", "text"), Ints("ints", 1, -2, 3),
		Attr{Name: "floats", Kind: AttrFloats, Floats: []float32{0.5, -0.5}},
		Attr{Name: "strings", Kind: AttrStrings, Strings: [][]byte{[]byte("u"), []byte("v")}},
		Attr{Name: "t", Kind: AttrTensor, T: &ft},
		Attr{Name: "tensors", Kind: AttrTensors, Tensors: []Tensor{ft}},
		Attr{Name: "g", Kind: AttrGraph, G: inner},
		Attr{Name: "graphs", Kind: AttrGraphs, Graphs: []*Graph{inner}})
	b.Output("y", y, Float, Batched(3))
	m, err := b.Model(17)
	if err != nil {
		t.Fatal(err)
	}
	m.Graph.Values = []Value{{Name: "unknown"}}
	return m
}

func TestMarshalAndBack(t *testing.T) {
	m := sample(t)
	got, err := Unmarshal(m.Marshal())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, m) {
		t.Errorf("got  %+v\nwant %+v", got.Graph, m.Graph)
	}
	n := &got.Graph.Nodes[0]
	if n.Int("i", 0) != -5 || n.Float("f", 0) != 1.5 || n.Text("s", "") != "text" || len(n.Ints("ints", nil)) != 3 || n.Int("none", 9) != 9 || n.Int("f", 8) != 8 {
		t.Errorf("attributes: %+v", n.Attrs)
	}
	f, err := got.Graph.Initializer("w").Floats()
	if err != nil || !reflect.DeepEqual(f, []float32{1, 2, 3, 4}) {
		t.Errorf("w: %v %v", f, err)
	}
	if _, err := got.Graph.Initializer("far").Floats(); err == nil || !strings.Contains(err.Error(), "lies in another file") {
		t.Errorf("external: %v", err)
	}
	if _, err := got.Graph.Initializer("half").Floats(); err == nil || !strings.Contains(err.Error(), `tensor "half": type FP16: want FP32`) {
		t.Errorf("half: %v", err)
	}
}

// modelWith returns the smallest model that holds one TensorProto.
func modelWith(tensor []byte) []byte {
	g := appendPart(nil, 5, tensor)
	return appendPart(appendPart(nil, 7, g), 8, appendInt(nil, 2, 17))
}

func TestTypedDataBecomesRaw(t *testing.T) {
	varints := func(field protowire.Number, v ...int64) []byte { return appendPacked(nil, field, v) }
	fixed := func(field protowire.Number, raw ...byte) []byte { return appendPart(nil, field, raw) }
	for _, c := range []struct {
		name string
		typ  DataType
		data []byte
		raw  []byte
	}{
		{"float_data", Float, fixed(4, 0, 0, 128, 63, 0, 0, 0, 64), []byte{0, 0, 128, 63, 0, 0, 0, 64}},
		{"float_data unpacked", Float, protowire.AppendFixed32(protowire.AppendTag(protowire.AppendFixed32(protowire.AppendTag(nil, 4, protowire.Fixed32Type), 7), 4, protowire.Fixed32Type), 8), []byte{7, 0, 0, 0, 8, 0, 0, 0}},
		{"int32_data", Int32, varints(5, -1, 2), []byte{255, 255, 255, 255, 2, 0, 0, 0}},
		{"int32_data of int8", Int8, varints(5, -1, 2), []byte{255, 2}},
		{"int32_data of bool", Bool, varints(5, 1, 0), []byte{1, 0}},
		{"int32_data of fp16", Float16, varints(5, 0x3c00, 1), []byte{0, 0x3c, 1, 0}},
		{"int64_data", Int64, varints(7, -2, 1), []byte{254, 255, 255, 255, 255, 255, 255, 255, 1, 0, 0, 0, 0, 0, 0, 0}},
		{"int64_data unpacked", Int64, appendInt(appendInt(nil, 7, 3), 7, 4), []byte{3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0}},
		{"double_data", Double, fixed(10, make([]byte, 16)...), make([]byte, 16)},
		{"uint64_data", Uint64, varints(11, 1, 2), []byte{1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}},
		{"uint64_data of uint32", Uint32, varints(11, 1, 2), []byte{1, 0, 0, 0, 2, 0, 0, 0}},
		{"raw_data", Uint8, fixed(9, 5, 6), []byte{5, 6}},
	} {
		tensor := append(appendInt(appendPacked(nil, 1, []int64{2}), 2, int64(c.typ)), c.data...)
		m, err := Unmarshal(modelWith(tensor))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if got := m.Graph.Initializers[0]; !bytes.Equal(got.Raw, c.raw) {
			t.Errorf("%s: raw % x, want % x", c.name, got.Raw, c.raw)
		}
	}
}

func TestUnmarshalRefuses(t *testing.T) {
	dims := func(d ...int64) []byte { return appendInt(appendPacked(nil, 1, d), 2, int64(Float)) }
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "it holds no graph"},
		{"text", []byte("hello, this is no model"), "not a valid ONNX model"},
		{"truncated", sample(t).Marshal()[:100], "unexpected EOF"},
		{"no opset", appendPart(nil, 7, nil), "it imports no operator set"},
		{"too few bytes", modelWith(append(dims(3), appendPart(nil, 9, make([]byte, 8))...)), "8 bytes of data: want 12 for dims [3] of FP32"},
		{"negative dim", modelWith(dims(-3)), "dims [-3]: want sizes of at least 0"},
		{"overflowing dims", modelWith(dims(1<<31, 1<<31, 1<<31)), "want sizes of at least 0 and a product"},
		{"a product that wraps to 0", modelWith(dims(1<<32, 1<<32)), "want sizes of at least 0 and a product"},
		{"a product that wraps twice", modelWith(dims(1<<32, 1<<31, 2)), "want sizes of at least 0 and a product"},
		{"type", modelWith(appendInt(nil, 2, 99)), "data_type 99: want 1 to 23"},
		{"no operator", appendPart(appendPart(nil, 7, appendPart(nil, 1, nil)), 8, nil), "op_type is empty"},
		{"wrong wire type", appendInt(nil, 7, 3), "wrong wire type"},
		{"too many parts", appendPart(appendPart(nil, 7, appendPart(nil, 1, bytes.Repeat([]byte{0x0a, 0}, partsMax+1))), 8, nil), "more than 262144 parts"},
		{"empty parts", appendPart(appendPart(nil, 7, bytes.Repeat([]byte{0x5a, 0}, 1<<14)), 8, nil), "too many for its bytes"},
	} {
		if _, err := Unmarshal(c.file); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want …%s…", c.name, err, c.want)
		}
	}
}

func TestReadNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.onnx")
	if err := os.WriteFile(path, []byte("nonsense"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), path+": not a valid ONNX model") {
		t.Errorf("%v", err)
	}
}

func TestCheck(t *testing.T) {
	node := func(out string, in ...string) Node {
		return Node{Op: "Op", Inputs: in, Outputs: []string{out}}
	}
	for want, g := range map[string]Graph{
		`node 0 (Op ""): input "b": want a graph input`: {Nodes: []Node{node("a", "b"), node("b")}},
		`output "a": is made twice`:                     {Nodes: []Node{node("a"), node("a")}},
		`output "z": no node makes it`:                  {Outputs: []Value{{Name: "z"}}},
		`attribute then: node 0 (Op ""): input "q"`: {Nodes: []Node{{Op: "If", Outputs: []string{"a"},
			Attrs: []Attr{{Name: "then", Kind: AttrGraph, G: &Graph{Nodes: []Node{node("p", "q")}}}}}}},
	} {
		if err := g.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want …%s…", err, want)
		}
	}
}

func TestMatch(t *testing.T) {
	tensor := func(name, typ string, shape ...int64) repo.TensorConfig {
		return repo.TensorConfig{Tensor: model.Tensor{Name: name, Datatype: model.Datatype(typ), Shape: shape}}
	}
	g := Graph{Inputs: []Value{{Name: "x", Type: Float, Dims: Batched(3, 4)}, {Name: "w", Type: Float}},
		Initializers: []Tensor{FloatTensor("w", []float32{1})}, Outputs: []Value{{Name: "y", Type: Int64, Dims: Batched(2)}}}
	good := func() (in, out repo.TensorConfig) { return tensor("x", "FP32", 3, 4), tensor("y", "INT64", 2) }
	for want, change := range map[string]func(in, out *repo.TensorConfig, m *repo.Model){
		"": func(in, out *repo.TensorConfig, m *repo.Model) {},
		`input "x": data_type UINT8: the graph has FP32`:     func(in, out *repo.TensorConfig, m *repo.Model) { in.Datatype = "UINT8" },
		`input "x": dims [3 5]: the graph has [batch 3 4]`:   func(in, out *repo.TensorConfig, m *repo.Model) { in.Shape = []int64{3, 5} },
		`output "z": the graph has none of that name, but y`: func(in, out *repo.TensorConfig, m *repo.Model) { out.Name = "z" },
		`input "x": dims [3 4]: the graph has [batch 3 4]`:   func(in, out *repo.TensorConfig, m *repo.Model) { m.Batched = false },
	} {
		in, out := good()
		m := &repo.Model{Name: "m", Batched: true}
		change(&in, &out, m)
		m.Config = &repo.Config{Inputs: []repo.TensorConfig{in}, Outputs: []repo.TensorConfig{out}}
		m.Inputs, m.Outputs = []model.Tensor{in.Tensor}, []model.Tensor{out.Tensor}
		err := g.Match(m)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("got %v, want …%s…", err, want)
		}
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add(sample(f).Marshal())
	f.Add(modelWith(append(appendInt(appendPacked(nil, 1, []int64{2}), 2, int64(Int64)), appendPacked(nil, 7, []int64{1, 2})...)))
	f.Add([]byte("no model"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Unmarshal(b)
		if err != nil {
			return
		}
		for i := range m.Graph.Initializers {
			x := &m.Graph.Initializers[i]
			if x.Type != String && !x.External && x.Type.Bytes(x.Len()) != int64(len(x.Raw)) {
				t.Fatalf("tensor of %d bytes for %v of %v", len(x.Raw), x.Dims, x.Type)
			}
		}
		m.Graph.Check()
		once := m.Marshal()
		again, err := Unmarshal(once)
		if err != nil {
			t.Fatalf("own output refused: %v", err)
		}
		if !bytes.Equal(again.Marshal(), once) {
			t.Fatal("marshal is not stable")
		}
	})
}
