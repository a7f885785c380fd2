package wire

import (
	"bytes"
	"slices"
	"testing"
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
	return slices.Concat(typeSamples(t), nodeSamples(t), sequenceSamples(t), loadSamples(t))
}

// sequenceSamples returns the samples of models that keep sequences.
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
	pictured := []model.Info{{ID: 9, Name: "photo", Version: "1", Inputs: []model.Tensor{one("threshold", model.FP32),
		{Name: "image", Datatype: model.FP32, Shape: []int64{3, 224, 224}, Picture: &model.Picture{ChannelsFirst: true, Channels: model.ChannelsBGR,
			Scale: 1. / 255, Mean: [3]float32{0.5, 0.25, 0.125}, Std: [3]float32{1, 2, 4}, ShorterSide: 256}}}}}
	pictureBytes, err := AppendModels(nil, pictured)
	if err != nil {
		t.Fatal(err)
	}
	decode := func(f Frame) (any, error) { return DecodeModels(f) }
	return []sample{{"models_with_pictures", pictureBytes, pictured, decode}, {"models_with_sequences", bytes, sequences, decode}, {"models_with_classes", openBytes, open, decode}, {"models_with_exits", exitBytes, exits, decode}}
}

// loadSamples returns the samples of models whose load was timed.
func loadSamples(t testing.TB) []sample {
	timed := BackendHello{Version: Version, Name: "host1", GPUs: []string{"gpu0"}, Models: []BackendModel{{Info: sampleModels()[0], Load: 73e7}, {Info: sampleModels()[1]}}}
	hello, err := AppendBackendHello(nil, &timed)
	if err != nil {
		t.Fatal(err)
	}
	offers := []Loadable{{Number: 2, Model: timed.Models[0]}}
	offered, err := AppendLoadables(nil, offers)
	if err != nil {
		t.Fatal(err)
	}
	return []sample{
		{"backend_hello_with_load_times", hello, timed, func(f Frame) (any, error) { return DecodeBackendHello(f) }},
		{"loadable_with_load_time", offered, offers, func(f Frame) (any, error) { return DecodeLoadables(f) }},
	}
}

// nodeSamples returns the samples of backends as nodes.
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

// spareSamples returns the samples of spare work, of plans and of early submits.
func spareSamples(must func([]byte, error) []byte) []sample {
	offers := []SpareOffer{{Work: 3, Name: "learn vehicle-s", Step: 2e6, Weight: 0.5}, {Work: 4}}
	pinned := []SpareOffer{{Work: 5, Step: 1e6, Weight: 1, GPU: 3}}
	starts := []SpareStart{{Number: 1 << 50, Work: 3, GPU: 1, Start: -5, Step: 2e6}, {}}
	ends := []SpareEnd{{Number: 1 << 50, FreeIn: -1}, {Number: 2}}
	record := PlanRecord{7, `{"number":7}`}
	early := []Submit{{ID: 9, Model: 3, Budget: 25e6, Input: model.Descriptor{Key: 5, Length: 6}, ReadyIn: 4e6}, {ID: 10, Budget: 1}, {ID: 11, ReadyIn: -1}}
	return []sample{
		{"submit_early", AppendSubmits(nil, early), early, func(f Frame) (any, error) { return DecodeSubmits(nil, f) }},
		{"plan_record", must(AppendPlanRecord(nil, &record)), record, func(f Frame) (any, error) { return DecodePlanRecord(f) }},
		{"spare_offer", must(AppendSpareOffers(nil, offers)), offers, func(f Frame) (any, error) { return DecodeSpareOffers(f) }},
		{"spare_offer_pinned", must(AppendSpareOffers(nil, pinned)), pinned, func(f Frame) (any, error) { return DecodeSpareOffers(f) }},
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

// normal makes empty inner slices nil, because decoders may keep memory for reuse.
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
