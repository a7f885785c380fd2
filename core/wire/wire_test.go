package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"downbeat.dev/core/model"
)

func sampleModels() []model.Info {
	return []model.Info{
		{ID: 1, Name: "detector-s", Version: "1", SLO: 50e6, BatchMax: 32, Ready: true, Platform: "onnxruntime_onnx",
			Inputs:  []model.Tensor{{Name: "image", Datatype: "FP32", Shape: []int64{3, 64, 96}}},
			Outputs: []model.Tensor{{Name: "boxes", Datatype: "FP32", Shape: []int64{100, 6}}, {Name: "label", Datatype: "BYTES", Shape: []int64{1}, Labels: []string{"car", "", "größer"}}}},
		{ID: 2, Name: "bare", Unbatched: true, InputMax: 1 << 20, Config: "max_batch_size: 0"},
	}
}

// samples returns one frame of every type, with a decoder that returns the messages again.
func samples(t testing.TB) []sample {
	return append(append(typeSamples(t), nodeSamples(t)...), sequenceSamples(t)...)
}

// sequenceSamples are those of models that keep sequences.
func sequenceSamples(t testing.TB) []sample {
	one := func(name string, of model.Datatype) model.Tensor {
		return model.Tensor{Name: name, Datatype: of, Shape: []int64{1}}
	}
	sequences := []model.Info{{ID: 6, Name: "counter", Version: "1", Inputs: []model.Tensor{one("x", model.Int32), one("START", model.Bool), one("CORRID", model.Uint64), one("S", model.Int32)},
		Outputs: []model.Tensor{one("y", model.Int32), one("T", model.Int32)}, Sequence: &model.Sequence{Idle: 5e9,
			Controls: []model.Control{{Input: "START", Kind: model.ControlStart, False: []byte{0}, True: []byte{1}}, {Input: "CORRID", Kind: model.ControlID}},
			States:   []model.State{{Input: "S", Output: "T", Initial: []byte{1, 2, 3, 4}}}}}, {ID: 7, Name: "plain", Version: "1"}}
	bytes, err := AppendModels(nil, sequences)
	if err != nil {
		t.Fatal(err)
	}

	exits := []model.Info{{ID: 8, Name: "sum-exit2", Version: "3", Static: 9, ExitOf: "sum", Shared: 8}}
	exitBytes, err := AppendModels(nil, exits)
	if err != nil {
		t.Fatal(err)
	}

	open := []model.Info{{ID: 8, Name: "open", Version: "1", Inputs: []model.Tensor{{Name: "x", Datatype: model.FP32, Shape: []int64{3, model.OpenDim}}, one("bias", model.FP32)}, Optional: 2}}
	openBytes, err := AppendModels(nil, open)
	if err != nil {
		t.Fatal(err)
	}
	decode := func(f Frame) (any, error) { return DecodeModels(f) }
	return []sample{{"models_with_sequences", bytes, sequences, decode}, {"models_with_classes", openBytes, open, decode}, {"models_with_exits", exitBytes, exits, decode}}
}

// nodeSamples are those of backends as nodes.
func nodeSamples(t testing.TB) []sample {
	nodes := []Peer{{Frontend: 3, DataAddr: "a:1"}, {Node: model.Composed, DataAddr: "b:1"}, {Node: 1}}
	peers, err := AppendPeers(nil, nodes)
	if err != nil {
		t.Fatal(err)
	}

	reachable := BackendHello{Version: Version, Name: "host1", GPUs: []string{"gpu0"}, DataAddr: "tcp://127.0.0.1:9001"}
	hello, err := AppendBackendHello(nil, &reachable)
	if err != nil {
		t.Fatal(err)
	}
	return []sample{
		{"peers_with_nodes", peers, nodes, func(f Frame) (any, error) { return DecodePeers(nil, f) }},
		{"backend_hello_with_address", hello, reachable, func(f Frame) (any, error) { return DecodeBackendHello(f) }},
	}
}

func typeSamples(t testing.TB) []sample {
	must := func(b []byte, err error) []byte {
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	submits := []Submit{{ID: 7, Model: 3, Priority: 2, Budget: 25e6, Input: model.Descriptor{Key: 1 << 60, Offset: 4096, Length: 150528}}, {ID: 8, Budget: -1}}
	cancels := []Cancel{{ID: 7}, {ID: 1<<64 - 1}}
	outcomes := []Outcome{{ID: 7, Reason: 1}, {ID: 9, Reason: 255}}
	executes := []Execute{{Batch: 5, GPU: 1, Model: 2, Start: 1000, Latest: 9000, Items: []Item{{Frontend: 4, ID: 7, Budget: 11, Input: model.Descriptor{Key: 1, Offset: 2, Length: 3}}, {ID: 8}}}, {Batch: 6}}
	dones := []Done{{Batch: 5, GPU: 1, Fetch: 2, Wait: 3, Exec: 4, FreeIn: 5, Failures: []ItemFailure{{Index: 1, Reason: 9}}}, {Batch: 6}}
	peers := []Peer{{Frontend: 4, DataAddr: "tcp://127.0.0.1:9000"}, {Frontend: 5}}
	staged := []Peer{{Frontend: 3, DataAddr: "a:1", Staged: true}, {Frontend: 4}}
	front := FrontendHello{Version: Version, Name: "gateway", Token: "secret", DataAddr: "tcp://127.0.0.1:9000"}
	back := BackendHello{Version: Version, Name: "host1", Token: "secret", SubCluster: "a", GPUs: []string{"gpu0", "gpu1"},
		Models: []BackendModel{{Info: sampleModels()[0], Profile: []time.Duration{1e6, 2e6, 3e6}}}}
	policies := []model.Info{{ID: 3, Name: "strict", SLOBinds: true, Priority: 200, QueueMax: 7}, {ID: 4, Name: "broken", Version: "2", Reason: "no such file"}}
	families := []model.Info{
		{ID: 5, Name: "vehicle-s", Version: "1", Family: "vehicle", Variant: "s", Accuracy: 0.875, Static: 1 << 20, Dynamic: 1 << 10},
		{ID: 9, Name: "vehicle", Family: "vehicle", Accuracy: 0.875, Variants: []uint32{6, 5}, Floors: []model.Floor{{Accuracy: 0.875, ID: 9}, {Accuracy: 0.9, ID: 10}}},
	}
	variant := []Execute{{Batch: 5, Model: ModelsMax - 1, Answer: 1 << 16, Items: []Item{{ID: 8}}}}
	detailed := back
	detailed.Details = []GPUDetail{{Kind: "NVIDIA H100", Memory: 80 << 30}, {}}
	failing := back
	failing.Failed = policies[1:]
	partly := back
	partly.Models = []BackendModel{{Info: sampleModels()[0], Profile: []time.Duration{1e6}, Loaded: []bool{true, false}}, {Info: sampleModels()[1], Loaded: []bool{false, false}}}
	placements := []Placement{{Number: 1 << 50, Op: Unload, GPU: 1, Model: 3}, {Number: 2, Op: Load}}
	reports := []PlacementReport{{Number: 1 << 50, GPU: 1, Model: 3, State: LoadFailed, Text: "no such file"},
		{GPU: 1, State: Loaded, Load: 7e8, WarmUp: 3e7, Static: 1 << 33, Dynamic: 1 << 32}}
	loadables := []Loadable{{Number: 9, Model: partly.Models[0]}, {Number: 1, Model: BackendModel{Info: sampleModels()[1]}}}
	commands := []ModelCommand{{Number: 1 << 50, Op: LoadModel, Frontend: 7, Model: "m", Payload: model.Descriptor{Key: 1 << 60, Offset: 8, Length: 99}},
		{Number: 2, Op: AddShape, Model: "n", Version: "3", Shape: "x[7,2]"}}
	answers := []ModelAnswer{{Number: 1 << 50}, {Number: 2, Code: CommandFailed, Text: "no such file"}}
	unserved := Unserved{Models: policies[1:]}
	return append(spareSamples(must), []sample{
		{"model_command", must(AppendModelCommands(nil, commands)), commands, func(f Frame) (any, error) { return DecodeModelCommands(f) }},
		{"model_answer", must(AppendModelAnswers(nil, answers)), answers, func(f Frame) (any, error) { return DecodeModelAnswers(f) }},
		{"unserved", must(AppendUnserved(nil, unserved)), unserved, func(f Frame) (any, error) { return DecodeUnserved(f) }},
		{"backend_hello_partly_loaded", must(AppendBackendHello(nil, &partly)), partly, func(f Frame) (any, error) { return DecodeBackendHello(f) }},
		{"placement", AppendPlacements(nil, placements), placements, func(f Frame) (any, error) { return DecodePlacements(f) }},
		{"placement_report", must(AppendPlacementReports(nil, reports)), reports, func(f Frame) (any, error) { return DecodePlacementReports(f) }},
		{"loadable", must(AppendLoadables(nil, loadables)), loadables, func(f Frame) (any, error) { return DecodeLoadables(f) }},
		{"frontend_hello", must(AppendFrontendHello(nil, &front)), front, func(f Frame) (any, error) { return DecodeFrontendHello(f) }},
		{"backend_hello", must(AppendBackendHello(nil, &back)), back, func(f Frame) (any, error) { return DecodeBackendHello(f) }},
		{"welcome", AppendWelcome(nil, Welcome{1, 9}), Welcome{1, 9}, func(f Frame) (any, error) { return DecodeWelcome(f) }},
		{"refusal", AppendRefusal(nil, Refusal{true, "wrong token"}), Refusal{true, "wrong token"}, func(f Frame) (any, error) { return DecodeRefusal(f) }},
		{"submit", AppendSubmits(nil, submits), submits, func(f Frame) (any, error) { return DecodeSubmits(nil, f) }},
		{"cancel", AppendCancels(nil, cancels), cancels, func(f Frame) (any, error) { return DecodeCancels(nil, f) }},
		{"outcome", AppendOutcomes(nil, outcomes), outcomes, func(f Frame) (any, error) { return DecodeOutcomes(nil, f) }},
		{"models", must(AppendModels(nil, sampleModels())), sampleModels(), func(f Frame) (any, error) { return DecodeModels(f) }},
		{"backend_hello_with_details", must(AppendBackendHello(nil, &detailed)), detailed, func(f Frame) (any, error) { return DecodeBackendHello(f) }},
		{"backend_hello_with_failures", must(AppendBackendHello(nil, &failing)), failing, func(f Frame) (any, error) { return DecodeBackendHello(f) }},
		{"models_with_policies", must(AppendModels(nil, policies)), policies, func(f Frame) (any, error) { return DecodeModels(f) }},
		{"models_with_families", must(AppendModels(nil, families)), families, func(f Frame) (any, error) { return DecodeModels(f) }},
		{"execute_of_a_variant", AppendExecutes(nil, variant), variant, func(f Frame) (any, error) { return DecodeExecutes(nil, f) }},
		{"peers", must(AppendPeers(nil, peers)), peers, func(f Frame) (any, error) { return DecodePeers(nil, f) }},
		{"peers_with_stages", must(AppendPeers(nil, staged)), staged, func(f Frame) (any, error) { return DecodePeers(nil, f) }},
		{"execute", AppendExecutes(nil, executes), executes, func(f Frame) (any, error) { return DecodeExecutes(nil, f) }},
		{"done", AppendDones(nil, dones), dones, func(f Frame) (any, error) { return DecodeDones(nil, f) }},
		{"ping", AppendPing(nil, Ping{5}), Ping{5}, func(f Frame) (any, error) { return DecodePing(f) }},
		{"lead", AppendLead(nil, Lead{7, true, 3}), Lead{7, true, 3}, func(f Frame) (any, error) { return DecodeLead(f) }},
		{"follow", AppendFollow(nil, Follow{7, true}), Follow{7, true}, func(f Frame) (any, error) { return DecodeFollow(f) }},
		{"standby_hello", must(AppendStandbyHello(nil, &StandbyHello{Version, "secret", "s2"})), StandbyHello{Version, "secret", "s2"}, func(f Frame) (any, error) { return DecodeStandbyHello(f) }},
		{"learned", must(AppendLearned(nil, []Learned{{"m", "1", 2.5, 7, 8}, {"n", "", 0, 0, 0}})), []Learned{{"m", "1", 2.5, 7, 8}, {"n", "", 0, 0, 0}}, func(f Frame) (any, error) { return DecodeLearned(f) }},
		{"pong", AppendPong(nil, Pong{5, 6}), Pong{5, 6}, func(f Frame) (any, error) { return DecodePong(f) }},
	}...)
}

// spareSamples are those of spare work, and of plans.
func spareSamples(must func([]byte, error) []byte) []sample {
	offers := []SpareOffer{{Work: 3, Name: "learn vehicle-s", Step: 2e6, Weight: 0.5}, {Work: 4}}
	starts := []SpareStart{{Number: 1 << 50, Work: 3, GPU: 1, Start: -5, Step: 2e6}, {}}
	ends := []SpareEnd{{Number: 1 << 50, FreeIn: -1}, {Number: 2}}
	record := PlanRecord{7, `{"number":7}`}
	return []sample{
		{"plan_record", must(AppendPlanRecord(nil, &record)), record, func(f Frame) (any, error) { return DecodePlanRecord(f) }},
		{"spare_offer", must(AppendSpareOffers(nil, offers)), offers, func(f Frame) (any, error) { return DecodeSpareOffers(f) }},
		{"spare_start", AppendSpareStarts(nil, starts), starts, func(f Frame) (any, error) { return DecodeSpareStarts(nil, f) }},
		{"spare_end", AppendSpareEnds(nil, ends), ends, func(f Frame) (any, error) { return DecodeSpareEnds(nil, f) }},
	}
}

type sample struct {
	name   string
	bytes  []byte
	want   any
	decode func(Frame) (any, error)
}

func frameOf(t testing.TB, b []byte) Frame {
	f, err := NewReader(bytes.NewReader(b)).Next()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestRoundTrip(t *testing.T) {
	seen := map[Type]bool{}
	for _, s := range samples(t) {
		f := frameOf(t, s.bytes)
		seen[f.Type] = true
		got, err := s.decode(f)
		if err != nil {
			t.Errorf("%s: %v", s.name, err)
		} else if !reflect.DeepEqual(normal(got), normal(s.want)) {
			t.Errorf("%s:\n got %+v\nwant %+v", s.name, got, s.want)
		}
	}
	if len(seen) != int(typeEnd)-1 {
		t.Errorf("samples cover %d of %d types", len(seen), typeEnd-1)
	}
}

// normal makes empty inner slices nil: decoders may keep memory that is to be used again.
func normal(v any) any {
	switch v := v.(type) {
	case []Execute:
		for i := range v {
			if len(v[i].Items) == 0 {
				v[i].Items = nil
			}
		}
	case []Done:
		for i := range v {
			if len(v[i].Failures) == 0 {
				v[i].Failures = nil
			}
		}
	}
	return v
}

// TestGolden pins the bytes: a change here is a new protocol version. WIRE_REWRITE=1 rewrites.
func TestGolden(t *testing.T) {
	const path = "testdata/golden.txt"
	var b strings.Builder
	for _, s := range samples(t) {
		b.WriteString(s.name + " " + hex.EncodeToString(s.bytes) + "\n")
	}
	b.WriteString("result " + hex.EncodeToString(ResultHeader{ID: 1 << 40, Reason: 9, Output: 3, Exec: 77}.Append(nil)) + "\n")
	b.WriteString("result_with_stages " + hex.EncodeToString(ResultHeader{ID: 7, Exec: 5, Staged: true, Stages: Stages{1, 2, 3}}.Append(nil)) + "\n")
	if os.Getenv("WIRE_REWRITE") != "" {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the encoding changed:\n%s", b.String())
	}
}

func TestTruncatedFramesAreRefused(t *testing.T) {
	for _, s := range samples(t) {
		f := frameOf(t, s.bytes)
		for n := range f.Body {
			if _, err := s.decode(Frame{Type: f.Type, Count: f.Count, Version: f.Version, Body: f.Body[:n]}); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s: %d of %d bytes: %v, want %v", s.name, n, len(f.Body), err, ErrMalformed)
			}
		}
		longer := append(bytes.Clone(f.Body), 0)
		if _, err := s.decode(Frame{Type: f.Type, Count: f.Count, Body: longer}); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: a trailing byte: %v", s.name, err)
		}
		if _, err := s.decode(Frame{Type: f.Type%(typeEnd-1) + 1, Count: f.Count, Body: f.Body}); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: another type's frame: %v", s.name, err)
		}
	}
}

func TestHeaderLimits(t *testing.T) {
	ok := AppendCancels(nil, []Cancel{{ID: 1}})
	for _, c := range []struct {
		name   string
		change func([]byte)
		want   error
		text   string
	}{
		{"version", func(b []byte) { b[5] = 10 }, ErrVersion, "version 10"},
		{"type 0", func(b []byte) { b[4] = 0 }, ErrMalformed, "unknown type 0"},
		{"type 200", func(b []byte) { b[4] = 200 }, ErrMalformed, "unknown type 200"},
		{"length", func(b []byte) { b[3] = 0xff }, ErrLimit, "at most 16777216"},
		{"count 0", func(b []byte) { b[6] = 0 }, ErrMalformed, "0 messages"},
		{"count", func(b []byte) { b[7] = 0xff }, ErrMalformed, "cannot hold"},
	} {
		b := bytes.Clone(ok)
		c.change(b)
		_, err := NewReader(bytes.NewReader(b)).Next()
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %v with %q", c.name, err, c.want, c.text)
		}
	}
}

func TestReaderSplitsAndEnds(t *testing.T) {
	var stream []byte
	all := samples(t)
	for _, s := range all {
		stream = append(stream, s.bytes...)
	}
	for name, src := range map[string]io.Reader{"whole": bytes.NewReader(stream), "bytewise": iotest.OneByteReader(bytes.NewReader(stream))} {
		r := NewReader(src)
		for _, s := range all {
			if _, _, err := r.Peek(HelloPeekBytes); err != nil {
				t.Fatalf("%s %s: peek: %v", name, s.name, err)
			}
			f, err := r.Next()
			if err != nil {
				t.Fatalf("%s %s: %v", name, s.name, err)
			}
			if got, err := s.decode(f); err != nil || !reflect.DeepEqual(normal(got), normal(s.want)) {
				t.Fatalf("%s %s: %v %+v", name, s.name, err, got)
			}
		}
		if _, err := r.Next(); err != io.EOF {
			t.Errorf("%s: the end: %v", name, err)
		}
	}
	if _, err := NewReader(bytes.NewReader(stream[:len(stream)-1])).Next(); err != nil {
		t.Fatal(err)
	}
	if _, err := NewReader(bytes.NewReader(stream[:11])).Next(); err != io.ErrUnexpectedEOF {
		t.Errorf("cut stream: %v", err)
	}
}

// TestLargeLengthDoesNotAllocate sends a header that promises 16 MiB and then nothing.
// TestReaderGoesOnAfterALargeFrame: the memory of a hello with thousands of models is given back, and
// the next frame is read into what came instead.
func TestReaderGoesOnAfterALargeFrame(t *testing.T) {
	hello := BackendHello{Version: Version, Name: "b", GPUs: []string{"g"}}
	for i := range ModelsMax {
		hello.Models = append(hello.Models, BackendModel{Info: model.Info{Name: fmt.Sprint(strings.Repeat("m", 200), i), Version: "1"}, Profile: make([]time.Duration, 16)})
	}
	stream, err := AppendBackendHello(nil, &hello)
	if err != nil {
		t.Fatal(err)
	}
	if len(stream) < readerBytesKeep {
		t.Fatalf("the hello has %d bytes, no more than is kept anyway", len(stream))
	}
	for stamp := range int64(3) {
		stream = AppendPing(stream, Ping{Stamp: stamp})
	}
	for name, source := range map[string]io.Reader{"whole": bytes.NewReader(stream), "in halves": iotest.HalfReader(bytes.NewReader(stream))} {
		r := NewReader(source)
		if f, err := r.Next(); err != nil || f.Type != TypeBackendHello {
			t.Fatalf("%s: %v, %v", name, f.Type, err)
		}
		for stamp := range int64(3) {
			f, err := r.Next()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if m, err := DecodePing(f); err != nil || m.Stamp != stamp {
				t.Errorf("%s: %+v, %v; want stamp %d", name, m, err, stamp)
			}
		}
		if _, err := r.Next(); err != io.EOF || len(r.buf) > readerBytesKeep {
			t.Errorf("%s: at the end %v, %d bytes kept", name, err, len(r.buf))
		}
	}
}

func TestLargeLengthDoesNotAllocate(t *testing.T) {
	b := AppendSubmits(nil, []Submit{{ID: 1}})
	b[3], b[6], b[7] = 1, 1, 0 // 16 MiB and some
	le.PutUint32(b, FrameBytesMax)
	r := NewReader(bytes.NewReader(b))
	if _, err := r.Next(); err != io.ErrUnexpectedEOF {
		t.Fatal(err)
	}
	if len(r.buf) > readerBytes*2 {
		t.Errorf("the reader holds %d bytes for a frame of which %d came", len(r.buf), len(b))
	}
}

func TestLargeArraysSplit(t *testing.T) {
	many := make([]Submit, 3*MessagesMax)
	for i := range many {
		many[i].ID = uint64(i)
	}
	r := NewReader(bytes.NewReader(AppendSubmits(nil, many)))
	next := uint64(0)
	var got []Submit
	for next < uint64(len(many)) {
		f, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if got, err = DecodeSubmits(got, f); err != nil {
			t.Fatal(err)
		}
		for _, s := range got {
			if s.ID != next {
				t.Fatalf("got %d, want %d", s.ID, next)
			}
			next++
		}
	}
}

func TestEncoderRefusesWhatIsOverTheLimits(t *testing.T) {
	long := strings.Repeat("x", NameBytesMax+1)
	for name, h := range map[string]BackendHello{
		"name":    {Name: long},
		"gpus":    {GPUs: make([]string, GPUsMax+1)},
		"models":  {Models: make([]BackendModel, ModelsMax+1)},
		"profile": {Models: []BackendModel{{Profile: make([]time.Duration, ProfileMax+1)}}},
		"tensors": {Models: []BackendModel{{Info: model.Info{Inputs: make([]model.Tensor, TensorsMax+1)}}}},
		"rank":    {Models: []BackendModel{{Info: model.Info{Inputs: []model.Tensor{{Shape: make([]int64, RankMax+1)}}}}}},
		"utf8":    {Name: "\xff"},
	} {
		want := ErrLimit
		if name == "utf8" {
			want = ErrMalformed
		}
		if _, err := AppendBackendHello([]byte("keep"), &h); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}

func TestResultHeader(t *testing.T) {
	for _, h := range []ResultHeader{
		{ID: 3, Output: 4, Exec: 99, Reason: 7, Answer: 1<<24 - 1},
		{ID: 3, Output: 4, Exec: 99, Reason: 7, Answer: 1<<24 - 1, Staged: true, Stages: Stages{Fetch: 5, Wait: StageOf(-1), Reply: StageOf(1 << 40)}},
	} {
		msg := append(h.Append(nil), "abcd"...)
		got, out, err := DecodeResult(msg)
		if err != nil || got != h || string(out) != "abcd" {
			t.Fatal(got, out, err)
		}
		for name, bad := range map[string][]byte{"short": msg[:20], "cut": msg[:27], "without output": msg[:len(msg)-4], "long": append(bytes.Clone(msg), 1)} {
			if _, _, err := DecodeResult(bad); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestNoAllocation holds the request path to zero allocations after warm-up.
func TestNoAllocation(t *testing.T) {
	submits := make([]Submit, 64)
	executes := []Execute{{Items: make([]Item, 32)}, {Items: make([]Item, 8)}}
	dones := []Done{{Failures: make([]ItemFailure, 2)}, {}}
	outcomes, cancels := make([]Outcome, 16), make([]Cancel, 4)
	var buf []byte
	var s2 []Submit
	var e2 []Execute
	var d2 []Done
	var o2 []Outcome
	var c2 []Cancel
	src := bytes.NewReader(nil)
	r := NewReader(src)
	turn := func() {
		buf = AppendSubmits(buf[:0], submits)
		buf = AppendExecutes(buf, executes)
		buf = AppendDones(buf, dones)
		buf = AppendOutcomes(buf, outcomes)
		buf = AppendCancels(buf, cancels)
		buf = AppendPing(buf, Ping{1})
		buf = AppendPong(buf, Pong{1, 2})
		buf = ResultHeader{ID: 1}.Append(buf)
		src.Reset(buf)
		for range 7 {
			f, err := r.Next()
			switch f.Type {
			case TypeSubmit:
				s2, err = DecodeSubmits(s2, f)
			case TypeExecute:
				e2, err = DecodeExecutes(e2, f)
			case TypeDone:
				d2, err = DecodeDones(d2, f)
			case TypeOutcome:
				o2, err = DecodeOutcomes(o2, f)
			case TypeCancel:
				c2, err = DecodeCancels(c2, f)
			case TypePing:
				_, err = DecodePing(f)
			case TypePong:
				_, err = DecodePong(f)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		r.lo = r.hi // the result header belongs to the data plane
	}
	turn()
	if n := testing.AllocsPerRun(100, turn); n != 0 {
		t.Errorf("%v allocations per turn", n)
	}
}

// FuzzFrames feeds random streams to the reader and every decoder: whatever decodes must encode to
// the same bytes again.
func FuzzFrames(f *testing.F) {
	for _, s := range samples(f) {
		f.Add(s.bytes)
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := NewReader(bytes.NewReader(stream))
		for {
			fr, err := r.Next()
			if err != nil {
				return
			}
			again, err := recode(fr)
			if err != nil {
				continue
			}
			want := make([]byte, HeaderBytes, HeaderBytes+len(fr.Body))
			want = append(want, fr.Body...)
			putHeader(want, fr.Type, fr.Count)
			if len(fr.Body) < frameBytesSoft/2 && !bytes.Equal(again, want) {
				t.Fatalf("%v: decoded and encoded again differs:\n%x\n%x", fr.Type, again, want)
			}
		}
	})
}

// recode decodes a frame and encodes the messages again.
func recode(f Frame) ([]byte, error) {
	switch f.Type {
	case TypeFrontendHello:
		h, err := DecodeFrontendHello(f)
		return again(err, func() ([]byte, error) { return AppendFrontendHello(nil, &h) })
	case TypeBackendHello:
		h, err := DecodeBackendHello(f)
		return again(err, func() ([]byte, error) { return AppendBackendHello(nil, &h) })
	case TypeModels:
		m, err := DecodeModels(f)
		return again(err, func() ([]byte, error) { return AppendModels(nil, m) })
	case TypePeers:
		m, err := DecodePeers(nil, f)
		return again(err, func() ([]byte, error) { return AppendPeers(nil, m) })
	case TypeWelcome:
		m, err := DecodeWelcome(f)
		return AppendWelcome(nil, m), err
	case TypeRefusal:
		m, err := DecodeRefusal(f)
		return AppendRefusal(nil, m), err
	case TypeSubmit:
		m, err := DecodeSubmits(nil, f)
		return AppendSubmits(nil, m), err
	case TypeCancel:
		m, err := DecodeCancels(nil, f)
		return AppendCancels(nil, m), err
	case TypeOutcome:
		m, err := DecodeOutcomes(nil, f)
		return AppendOutcomes(nil, m), err
	case TypeExecute:
		m, err := DecodeExecutes(nil, f)
		return again(err, func() ([]byte, error) { return AppendExecutes(nil, m), nil })
	case TypeDone:
		m, err := DecodeDones(nil, f)
		return again(err, func() ([]byte, error) { return AppendDones(nil, m), nil })
	case TypePing:
		m, err := DecodePing(f)
		return AppendPing(nil, m), err
	case TypeLead:
		m, err := DecodeLead(f)
		return AppendLead(nil, m), err
	case TypeFollow:
		m, err := DecodeFollow(f)
		return AppendFollow(nil, m), err
	case TypeStandbyHello:
		h, err := DecodeStandbyHello(f)
		return again(err, func() ([]byte, error) { return AppendStandbyHello(nil, &h) })
	case TypeLearned:
		m, err := DecodeLearned(f)
		return again(err, func() ([]byte, error) { return AppendLearned(nil, m) })
	case TypePlacement:
		m, err := DecodePlacements(f)
		return AppendPlacements(nil, m), err
	case TypePlacementReport:
		m, err := DecodePlacementReports(f)
		return again(err, func() ([]byte, error) { return AppendPlacementReports(nil, m) })
	case TypeModelCommand, TypeModelAnswer, TypeUnserved, TypeSpareOffer, TypeSpareStart, TypeSpareEnd, TypePlanRecord:
		return recodeControl(f)
	case TypeLoadable:
		m, err := DecodeLoadables(f)
		return again(err, func() ([]byte, error) { return AppendLoadables(nil, m) })
	default:
		m, err := DecodePong(f)
		return AppendPong(nil, m), err
	}
}

// recodeControl is recode for what controls models.
func recodeControl(f Frame) ([]byte, error) {
	switch f.Type {
	case TypeModelCommand:
		m, err := DecodeModelCommands(f)
		return again(err, func() ([]byte, error) { return AppendModelCommands(nil, m) })
	case TypeModelAnswer:
		m, err := DecodeModelAnswers(f)
		return again(err, func() ([]byte, error) { return AppendModelAnswers(nil, m) })
	}
	switch f.Type {
	case TypeSpareOffer:
		m, err := DecodeSpareOffers(f)
		return again(err, func() ([]byte, error) { return AppendSpareOffers(nil, m) })
	case TypeSpareStart:
		m, err := DecodeSpareStarts(nil, f)
		return AppendSpareStarts(nil, m), err
	case TypePlanRecord:
		m, err := DecodePlanRecord(f)
		return again(err, func() ([]byte, error) { return AppendPlanRecord(nil, &m) })
	case TypeSpareEnd:
		m, err := DecodeSpareEnds(nil, f)
		return AppendSpareEnds(nil, m), err
	}
	u, err := DecodeUnserved(f)
	return again(err, func() ([]byte, error) { return AppendUnserved(nil, u) })
}

func again(err error, encode func() ([]byte, error)) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return encode()
}

func FuzzResult(f *testing.F) {
	f.Add(ResultHeader{ID: 5}.Append(nil))
	f.Add(ResultHeader{ID: 5, Staged: true, Stages: Stages{1, 2, 3}}.Append(nil))
	f.Add(append(ResultHeader{ID: 5, Output: 2}.Append(nil), 1, 2))
	f.Fuzz(func(t *testing.T, msg []byte) {
		h, out, err := DecodeResult(msg)
		if err == nil && !bytes.Equal(append(h.Append(nil), out...), msg) {
			t.Fatalf("%x decodes to %+v and encodes differently", msg, h)
		}
	})
}

func BenchmarkSubmit64(b *testing.B) {
	m := make([]Submit, 64)
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendSubmits(buf[:0], m)
		m, _ = DecodeSubmits(m, Frame{Type: TypeSubmit, Count: 64, Body: buf[HeaderBytes:]})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/msg")
}

// TestEarlierVersionIsRead: a peer of the version before sends the same messages under its own number.
func TestEarlierVersionIsRead(t *testing.T) {
	hello, err := AppendFrontendHello(nil, &FrontendHello{Version: Version, Name: "f"})
	if err != nil {
		t.Fatal(err)
	}
	SetHelloVersion(hello, VersionMin)
	stream := AppendPing(hello, Ping{3})
	stream = append(stream[:len(hello):len(hello)], SetVersion(stream[len(hello):], VersionMin)...)
	r := NewReader(bytes.NewReader(stream))
	f, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	if h, err := DecodeFrontendHello(f); err != nil || h.Version != VersionMin || h.Name != "f" || stream[5] != VersionMin {
		t.Errorf("%+v, %v", h, err)
	}
	if f, err = r.Next(); err != nil || f.Type != TypePing {
		t.Errorf("%v, %v", f.Type, err)
	}
	stream[5] = VersionMin - 1
	if _, err := NewReader(bytes.NewReader(stream)).Next(); !errors.Is(err, ErrVersion) {
		t.Errorf("two versions before: %v", err)
	}
}

// TestGoldenOfVersionsBefore: what a peer of the version before sends still means the same, so that a
// cluster can be upgraded part by part. The bytes are those that it pinned; a field that a message has got since
// must be read according to the frame's version.
func TestGoldenOfVersionsBefore(t *testing.T) {
	for version := VersionMin; version < Version; version++ {
		text, err := os.ReadFile(fmt.Sprintf("testdata/golden-%d.txt", version))
		if err != nil {
			t.Fatal(err)
		}
		decodeGolden(t, string(text), uint16(version))
	}
}

func decodeGolden(t *testing.T, text string, version uint16) {
	now := map[string]sample{}
	for _, s := range samples(t) {
		now[s.name] = s
	}
	for line := range strings.Lines(text) {
		name, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		b, err := hex.DecodeString(digits)
		s, known := now[name]
		if err != nil || !known {
			continue // a message of the data plane
		}
		got, err := s.decode(frameOf(t, b))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := s.want
		switch h := want.(type) { // hellos say their version
		case FrontendHello:
			h.Version = version
			want = h
		case BackendHello:
			h.Version = version
			want = h
		case StandbyHello:
			h.Version = version
			want = h
		}
		if !reflect.DeepEqual(normal(got), normal(want)) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
}

// TestEarlierVersionIsWritten: a peer of the version before gets the messages that it knows, without the fields that came
// later, whatever stands between them.
func TestEarlierVersionIsWritten(t *testing.T) {
	infos := []model.Info{{ID: 3, Name: "strict", SLOBinds: true, Priority: 200, QueueMax: 7, Reason: "x", Family: "f", Accuracy: 0.5},
		{ID: 4, Name: "f", Variants: []uint32{3}}}
	models, err := AppendModels(AppendPing(nil, Ping{1}), infos)
	if err != nil {
		t.Fatal(err)
	}
	peers, err := AppendPeers(models, []Peer{{Frontend: 3, DataAddr: "a", Staged: true}})
	if err != nil {
		t.Fatal(err)
	}
	r := NewReader(bytes.NewReader(SetVersion(AppendPing(peers, Ping{2}), VersionMin)))
	for _, want := range []Type{TypePing, TypeModels, TypePeers, TypePing} {
		f, err := r.Next()
		if err != nil || f.Type != want || f.Version != VersionMin {
			t.Fatalf("%v of version %d, %v; want %v", f.Type, f.Version, err, want)
		}
		if want == TypePeers {
			if got, err := DecodePeers(nil, f); err != nil || !reflect.DeepEqual(got, []Peer{{Frontend: 3, DataAddr: "a"}}) {
				t.Errorf("%+v, %v", got, err)
			}
		}
		if want != TypeModels {
			continue
		}
		if got, err := DecodeModels(f); err != nil || !reflect.DeepEqual(got, []model.Info{{ID: 3, Name: "strict"}}) {
			t.Errorf("%+v, %v", got, err)
		}
	}

	h := BackendHello{Version: Version, Name: "b", Failed: infos}
	hello, err := AppendBackendHello(nil, &h)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeBackendHello(frameOf(t, SetHelloVersion(hello, VersionMin)))
	if err != nil || got.Version != VersionMin || got.Name != "b" || got.Failed != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestSpareOffersAreChecked: a weight that is no number, or a step that is none, ends the session that sent it.
func TestSpareOffersAreChecked(t *testing.T) {
	for _, o := range []SpareOffer{{Step: -1, Weight: 1}, {Step: 1}, {Step: 1, Weight: -1}, {Step: 1, Weight: math.NaN()}, {Step: 1, Weight: math.Inf(1)}} {
		b, err := AppendSpareOffers(nil, []SpareOffer{o})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := DecodeSpareOffers(frameOf(t, b)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%+v was read as %+v, %v", o, got, err)
		}
	}
}
