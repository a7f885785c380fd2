//go:build linux

package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"downbeat.dev"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/frontend/gateway/oip"
)

// accumulator is Triton's published sequence example as a graph: a step's output is the sum of its sequence so far. It tells what
// it saw of the controls.
func accumulator(t testing.TB) []byte {
	one := onnx.Batched(1)
	return graph(t, "accumulator", func(g *onnx.Builder) {
		in := g.Input("INPUT", onnx.Int32, one)
		start := g.Input("START", onnx.Int32, one)
		end := g.Input("END", onnx.Int32, one)
		ready := g.Input("READY", onnx.Int32, one)
		id := g.Input("CORRID", onnx.Uint64, one)
		before := g.Input("INPUT_STATE", onnx.Int32, one)

		sum := g.Node("Add", []string{in, before})
		g.Output("OUTPUT", g.Node("Identity", []string{sum}), onnx.Int32, one)
		g.Output("SEEN", g.Node("Concat", []string{start, end, ready}, onnx.Int("axis", 1)), onnx.Int32, onnx.Batched(3))
		g.Output("ID", g.Node("Identity", []string{id}), onnx.Uint64, one)
		g.Output("OUTPUT_STATE", g.Node("Identity", []string{sum}), onnx.Int32, one)
	})
}

// accumulatorConfig is its configuration, in the words of Triton's documentation.
const accumulatorConfig = `backend: "onnxruntime"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "SEEN" data_type: TYPE_INT32 dims: [ 3 ] }, { name: "ID" data_type: TYPE_UINT64 dims: [ 1 ] } ]
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  STRATEGY
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
  state [ {
    input_name: "INPUT_STATE" output_name: "OUTPUT_STATE" data_type: TYPE_INT32 dims: [ 1 ]
    INITIAL
  } ]
}
` + slow

// serveSequences serves the example with both strategies; the second begins with a state from a file.
func serveSequences(t *testing.T) *downbeat.System {
	config := func(strategy, initial string) []byte {
		return []byte(strings.NewReplacer("STRATEGY", strategy, "INITIAL", initial).Replace(accumulatorConfig))
	}
	return serveReal(t, writeRepository(t,
		file{"simple_sequence/1/model.onnx", accumulator(t)}, file{"simple_sequence/config.pbtxt", config("direct { }", "")},
		file{"simple_dyna_sequence/1/model.onnx", accumulator(t)},
		file{"simple_dyna_sequence/config.pbtxt", config("oldest { max_candidate_sequences: 4 }", `initial_state: { name: "hundred" data_type: TYPE_INT32 dims: [ 1 ] data_file: "hundred" }`)},
		file{"simple_dyna_sequence/initial_state/hundred", []byte{100, 0, 0, 0}}), nil)
}

// TestConformanceSequences: sequences of Triton's examples over REST, with both strategies and with state tensors.
func TestConformanceSequences(t *testing.T) {
	s := serveSequences(t)
	infer := func(model, parameters string, x int) (int, string) {
		return ask(t, s, "/v2/models/"+model+"/infer", fmt.Sprintf(
			`{"parameters":{"timeout":60000000,%s},"inputs":[{"name":"INPUT","datatype":"INT32","shape":[1,1],"data":[%d]}]}`, parameters, x))
	}
	if _, text := ask(t, s, "/v2/models/simple_sequence", ""); strings.Contains(text, "START") || strings.Contains(text, "STATE") || !strings.Contains(text, `"INPUT"`) {
		t.Errorf("metadata shows what clients do not give: %s", text)
	}

	for i, step := range []struct {
		model, parameters string
		x                 int
		want              string
	}{
		{"simple_sequence", `"sequence_id":1000,"sequence_start":true`, 11, `"data":[11]}|"data":[1,0,1]|"data":[1000]`},
		{"simple_dyna_sequence", `"sequence_id":1000,"sequence_start":true`, 11, `"data":[111]}|"data":[1,0,1]`},
		{"simple_sequence", `"sequence_id":1001,"sequence_start":true`, -5, `"data":[-5]}`},
		{"simple_sequence", `"sequence_id":1000`, 7, `"data":[18]}|"data":[0,0,1]`},
		{"simple_dyna_sequence", `"sequence_id":1000,"sequence_end":true`, 7, `"data":[118]}|"data":[0,1,1]`},
		{"simple_sequence", `"sequence_id":1001,"sequence_end":true`, -5, `"data":[-10]}`},
		{"simple_sequence", `"sequence_id":1000,"sequence_end":true`, 5, `"data":[23]}`},
	} {
		code, text := infer(step.model, step.parameters, step.x)
		for want := range strings.SplitSeq(step.want, "|") {
			if code != http.StatusOK || !strings.Contains(text, want) {
				t.Errorf("step %d: %d %s, want %s", i, code, text, want)
			}
		}
	}

	for want, parameters := range map[string]string{
		"must specify the START flag on the first request of the sequence": `"sequence_id":1000`,
		"must specify a non-zero or non-empty correlation ID":              `"sequence_start":true`,
		"the model wants a number of 64 bits":                              `"sequence_id":"text","sequence_start":true`,
	} {
		if code, text := infer("simple_sequence", parameters, 1); code != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s, want %s", parameters, code, text, want)
		}
	}
	code, text := ask(t, s, "/v2/models/simple_sequence/infer", `{"parameters":{"sequence_id":5,"sequence_start":true},"inputs":[{"name":"INPUT","datatype":"INT32","shape":[2,1],"data":[1,2]}]}`)
	if code != http.StatusBadRequest || !strings.Contains(text, "must specify batch-size 1") {
		t.Errorf("two rows: %d %s", code, text)
	}
}

// TestConformanceSequencesOverStreams: the steps of a sequence are sent at once on one gRPC stream, as Triton's stream example does, and run in
// their order.
func TestConformanceSequencesOverStreams(t *testing.T) {
	s := serveSequences(t)
	conn, err := grpc.NewClient(s.Config().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := oip.NewGRPCInferenceServiceClient(conn).ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	whole := func(n int64) *oip.InferParameter {
		return &oip.InferParameter{ParameterChoice: &oip.InferParameter_Int64Param{Int64Param: n}}
	}
	truth := func(is bool) *oip.InferParameter {
		return &oip.InferParameter{ParameterChoice: &oip.InferParameter_BoolParam{BoolParam: is}}
	}
	const steps = 40
	for i := range steps {
		for id := range int64(2) {
			err := stream.Send(&oip.ModelInferRequest{ModelName: "simple_sequence", Id: fmt.Sprintf("%d_%d", id+1, i),
				Parameters:       map[string]*oip.InferParameter{"timeout": whole(60e6), "sequence_id": whole(id + 1), "sequence_start": truth(i == 0), "sequence_end": truth(i == steps-1)},
				Inputs:           []*oip.ModelInferRequest_InferInputTensor{{Name: "INPUT", Datatype: "INT32", Shape: []int64{1, 1}}},
				RawInputContents: [][]byte{{byte(id + 1), 0, 0, 0}}})
			if err != nil {
				t.Fatal(err)
			}
		}
	}

	// The sums tell the order: the step that came as the n-th of its sequence has n times its input.
	for range 2 * steps {
		r, err := stream.Recv()
		if err != nil || r.ErrorMessage != "" {
			t.Fatalf("%v, %v", r, err)
		}
		var id, i int
		if _, err := fmt.Sscanf(r.InferResponse.Id, "%d_%d", &id, &i); err != nil {
			t.Fatal(err)
		}
		if got := int(r.InferResponse.RawOutputContents[0][0]); got != id*(i+1) {
			t.Errorf("step %d of sequence %d: sum %d, want %d", i, id, got, id*(i+1))
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
}
