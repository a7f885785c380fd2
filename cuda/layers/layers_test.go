package layers

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func floatConst(name string, v []float32, dims ...int) Constant {
	return Constant{Value{name, Float32, dims}, bytesOf(v)}
}

func node(op, out string, in ...string) Node {
	return Node{Name: out, Op: op, Inputs: in, Outputs: []string{out}, Attrs: map[string]Attr{}}
}

// chain returns x → Relu → … with a residual from the start to the end.
func chain(n int) *Graph {
	g := &Graph{Name: "chain", Opset: 13, Inputs: []Value{{"x", Float32, []int{-1, 100}}}, Outputs: []string{"y"}}
	at := "x"
	for i := range n {
		name := fmt.Sprintf("v%d", i)
		g.Nodes = append(g.Nodes, node([]string{"Relu", "Sigmoid", "Tanh"}[i%3], name, at))
		at = name
	}
	g.Nodes = append(g.Nodes, node("Add", "y", at, "v0"))
	return g
}

func TestActivationsTakeAsLittleMemoryAsTheirLivesAllow(t *testing.T) {
	p, err := Compile(chain(20), 4, FP32)
	must(t, err)
	// Live at each layer: v0, an input and an output.
	if want := int64(3 * 1792); p.ActivationBytes != want {
		t.Errorf("%d bytes, want %d", p.ActivationBytes, want)
	}
}

// TestPlacedBuffersDoNotOverlap shows L1 for random lifetimes.
func TestPlacedBuffersDoNotOverlap(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 5))
		b := make([]Buffer, 2+rng.IntN(60))
		var sum int64
		for i := range b {
			first := rng.IntN(40)
			b[i] = Buffer{Bytes: 1 + rng.Int64N(5000), First: first, Last: first + rng.IntN(8)}
			sum += (b[i].Bytes + 255) &^ 255
		}
		total := placeActivations(b)
		if total > sum {
			t.Fatalf("seed %d: %d bytes for %d", seed, total, sum)
		}
		for i := range b {
			if b[i].Offset%bufferAlign != 0 || b[i].Offset+b[i].Bytes > total {
				t.Fatalf("seed %d: %+v in %d", seed, b[i], total)
			}
			for j := range i {
				alive := b[i].First <= b[j].Last && b[j].First <= b[i].Last
				apart := b[i].Offset+b[i].Bytes <= b[j].Offset || b[j].Offset+b[j].Bytes <= b[i].Offset
				if alive && !apart {
					t.Fatalf("seed %d: %+v and %+v", seed, b[i], b[j])
				}
			}
		}
	}
}

func TestConvolutionTakesInWhatFollows(t *testing.T) {
	w := make([]float32, 8*8)
	one := func(name string) Constant { return floatConst(name, slices.Repeat([]float32{1}, 8), 8) }
	g := &Graph{Name: "block", Opset: 13, Inputs: []Value{{"x", Float32, []int{-1, 8, 4, 4}}}, Outputs: []string{"y"},
		Constants: []Constant{floatConst("w", w, 8, 8, 1, 1), one("s"), one("b"), one("m"), one("v")},
		Nodes: []Node{node("Conv", "c", "x", "w"), node("BatchNormalization", "n", "c", "s", "b", "m", "v"),
			node("Add", "a", "x", "n"), node("Relu", "y", "a")}}
	p, err := Compile(g, 2, FP32)
	must(t, err)
	if len(p.Layers) != 1 || len(p.Layers[0].Steps) != 1 || p.Layers[0].Op != "Conv+BatchNormalization+Add+Relu" || p.ActivationBytes != 0 {
		t.Errorf("%d layers, first %q, %d bytes", len(p.Layers), p.Layers[0].Op, p.ActivationBytes)
	}
	if want := int64(2 * 2 * 8 * 16 * 8); p.FLOP() != want {
		t.Errorf("%d FLOP, want %d", p.FLOP(), want)
	}
	other, err := Compile(g, 1, FP32)
	must(t, err)
	for i := range p.Params { // L3
		if p.Params[i].Name != other.Params[i].Name || !slices.Equal(p.Params[i].Data, other.Params[i].Data) {
			t.Errorf("parameter %d is %q and %q", i, p.Params[i].Name, other.Params[i].Name)
		}
	}
}

func TestBadGraphsAreRefused(t *testing.T) {
	in := []Value{{"x", Float32, []int{-1, 4}}}
	nan := float32(math.NaN())
	for want, g := range map[string]*Graph{
		"operators Foo, Zap":   {Inputs: in, Outputs: []string{"y"}, Nodes: []Node{node("Zap", "a", "x"), node("Foo", "y", "a")}},
		"not a number":         {Inputs: in, Outputs: []string{"y"}, Constants: []Constant{floatConst("w", []float32{1, nan}, 2)}, Nodes: []Node{node("Relu", "y", "x")}},
		"bytes for":            {Inputs: in, Outputs: []string{"y"}, Constants: []Constant{floatConst("w", []float32{1}, 2)}, Nodes: []Node{node("Relu", "y", "x")}},
		"negative dimension":   {Inputs: in, Outputs: []string{"y"}, Constants: []Constant{floatConst("w", nil, -2)}, Nodes: []Node{node("Relu", "y", "x")}},
		"more than 2147483647": {Inputs: []Value{{"x", Float32, []int{-1, 1 << 20, 1 << 20}}}, Outputs: []string{"y"}, Nodes: []Node{node("Relu", "y", "x")}},
		"no outputs":           {Inputs: in, Nodes: []Node{node("Relu", "y", "x")}},
		"is not computed":      {Inputs: in, Outputs: []string{"q"}, Nodes: []Node{node("Relu", "y", "x")}},
		"not defined before":   {Inputs: in, Outputs: []string{"y"}, Nodes: []Node{node("Relu", "y", "z")}},
		"defined twice":        {Inputs: in, Outputs: []string{"y"}, Nodes: []Node{node("Relu", "y", "x"), node("Tanh", "y", "x")}},
		"do not broadcast":     {Inputs: in, Outputs: []string{"y"}, Constants: []Constant{floatConst("w", []float32{1, 2, 3}, 3)}, Nodes: []Node{node("Add", "y", "x", "w")}},
		"do not multiply":      {Inputs: in, Outputs: []string{"y"}, Constants: []Constant{floatConst("w", []float32{1, 2, 3}, 3, 1)}, Nodes: []Node{node("MatMul", "y", "x", "w")}},
		"no batch dimension":   {Inputs: []Value{{"x", Float32, []int{4}}}, Outputs: []string{"y"}, Nodes: []Node{node("Relu", "y", "x")}},
		"is not fixed":         {Inputs: []Value{{"x", Float32, []int{-1, -1}}}, Outputs: []string{"y"}, Nodes: []Node{node("Relu", "y", "x")}},
		"needs 2 and 1":        {Inputs: in, Outputs: []string{"y"}, Nodes: []Node{node("Add", "y", "x")}},
		"left out":             {Inputs: in, Outputs: []string{"y"}, Nodes: []Node{node("Add", "y", "x", "")}},
		"type 77":              {Inputs: []Value{{"x", 77, []int{-1}}}, Outputs: []string{"y"}, Nodes: []Node{node("Relu", "y", "x")}},
		"does not begin with":  {Inputs: []Value{{"x", Float32, []int{-1, 4, 4}}}, Outputs: []string{"y"}, Nodes: []Node{node("Shape", "y", "x")}},
		"is not a constant":    {Inputs: in, Outputs: []string{"y"}, Nodes: []Node{node("Shape", "s", "x"), node("Cast", "i", "x"), node("Reshape", "y", "x", "i")}},
	} {
		if want == "is not a constant" {
			g.Nodes[1].Attrs["to"] = Attr{Int: 7}
		}
		_, err := Compile(g, 2, FP32)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	for _, n := range []int{0, -1, BatchMax + 1} {
		if _, err := Compile(chain(2), n, FP32); err == nil || !strings.Contains(err.Error(), "must be 1 to 4096") {
			t.Errorf("batch %d was taken: %v", n, err)
		}
	}
	if _, err := Compile(&Graph{Nodes: []Node{node("Zap", "a")}}, 1, FP32); !errors.Is(err, ErrUnsupported) {
		t.Errorf("unknown operator: %v", err)
	}
}

// FuzzCompile shows that small random graphs, valid or not, end in a plan or an error: never in a panic, and never
// with much memory.
func FuzzCompile(f *testing.F) {
	for seed := range uint64(30) {
		f.Add(seed, uint8(3))
	}
	f.Fuzz(func(t *testing.T, seed uint64, size uint8) {
		rng := rand.New(rand.NewPCG(seed, 11))
		_, _ = Compile(randomGraph(rng, int(size%24)), 1+rng.IntN(4), Precision(rng.IntN(3)))
	})
}

func randomGraph(rng *rand.Rand, size int) *Graph {
	dim := func() int { return []int{-1, 0, 1, 2, 3, 4, 7, 1 << 16}[rng.IntN(8)] }
	shape := func() (d []int) {
		for range rng.IntN(5) {
			d = append(d, dim())
		}
		return d
	}
	g := &Graph{Name: "random", Opset: int64(7 + rng.IntN(12)), Inputs: []Value{{"v0", DataType(1 + rng.IntN(5)), append([]int{-1}, shape()...)}}}
	ints := func(n int) []int64 {
		v := make([]int64, n)
		for i := range v {
			v[i] = []int64{-1 << 62, -3, -1, 0, 1, 2, 3, 1 << 62}[rng.IntN(8)]
		}
		return v
	}
	g.Constants = []Constant{floatConst("w", []float32{1, 2, 3, 4}, 2, 2), {Value{"i", Int64, []int{3}}, bytesOf(ints(3))}, {Value{"j", Int64, nil}, bytesOf(ints(1))}}
	names := []string{"v0", "w", "i", "j", ""}
	var ops []string
	for op := range operators {
		ops = append(ops, op)
	}
	slices.Sort(ops)
	for i := range size {
		n := node(ops[rng.IntN(len(ops))], fmt.Sprintf("v%d", i+1))
		for range 1 + rng.IntN(4) {
			n.Inputs = append(n.Inputs, names[rng.IntN(len(names))])
		}
		for _, a := range []string{"axis", "axes", "perm", "pads", "strides", "kernel_shape", "group", "keepdims", "to", "split", "dilations", "transB", "start", "end"} {
			if rng.IntN(3) == 0 {
				n.Attrs[a] = Attr{Int: ints(1)[0], Ints: ints(rng.IntN(5))}
			}
		}
		g.Nodes = append(g.Nodes, n)
		names = append(names, n.Outputs[0])
	}
	g.Outputs = []string{names[len(names)-1]}
	return g
}
