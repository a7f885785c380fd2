package gateway

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"downbeat.dev/frontend/gateway/oip"
	"downbeat.dev/internal/memcost"
)

// repeatField returns a message with times copies of one length-delimited field.
func repeatField(num protowire.Number, body []byte, times int) []byte {
	one := protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), body)
	return bytes.Repeat(one, times)
}

// TestDecodingStopsAtTheLimits: a message of empty tensors compresses to almost nothing and must not expand to
// gigabytes, so decoding stops at the limit.
func TestDecodingStopsAtTheLimits(t *testing.T) {
	packedShape := repeatField(3, bytes.Repeat([]byte{1}, 1<<20), 1)
	looseShape := bytes.Repeat([]byte{3 << 3, 1}, 1<<20)
	for _, c := range []struct {
		name, field string
		msg         []byte
	}{
		{"inputs", "inputs: ", repeatField(5, nil, 1<<20)},
		{"outputs", "outputs: ", repeatField(6, nil, 1<<20)},
		{"raw contents", "raw_input_contents: ", repeatField(7, nil, 1<<20)},
		{"packed shape", "shape: ", repeatField(5, packedShape, 1)},
		{"loose shape", "shape: ", repeatField(5, looseShape, 1)},
	} {
		m := new(inferMessage)
		var err error
		took := memcost.Allocated(func() { err = m.decodeMessage(c.msg) })
		if !errors.Is(err, errLimit) || !strings.HasPrefix(err.Error(), c.field) {
			t.Errorf("%s: %v", c.name, err)
		}
		if took > 256<<10 {
			t.Errorf("%s: %d bytes of memory for a refused message", c.name, took)
		}
	}
}

// TestLargeCallsAreNotKept shows that arrays that grew for a large call are not kept for small calls.
func TestLargeCallsAreNotKept(t *testing.T) {
	for _, c := range []struct {
		name  string
		grow  func(*inference)
		large bool
	}{
		{"one row", func(in *inference) { in.room.calls = sizedZero(in.room.calls, 1) }, false},
		{"1,024 rows", func(in *inference) { in.room.calls = sizedZero(in.room.calls, rowsMax) }, true},
		{"256 inputs", func(in *inference) { in.inputs = sizedZero(in.inputs, tensorsMax) }, true},
		{"256 outputs", func(in *inference) { in.outputs = sizedZero(in.outputs, tensorsMax) }, true},
	} {
		in := new(inference)
		c.grow(in)
		in.resetCall()
		if in.isLarge() != c.large {
			t.Errorf("%s: large: %v", c.name, in.isLarge())
		}
	}
}

// TestLongNamesCostNobodyElse: an error repeats the names in a request, and gRPC sends errors in a header. A name as
// long as a message would end the connection, and with it the calls of others behind the same proxy.
func TestLongNamesCostNobodyElse(t *testing.T) {
	_, server, addr := serving(t, Options{}, nil)
	c := oip.NewGRPCInferenceServiceClient(dialRPC(t, addr))
	stream, err := c.ModelStreamInfer(context.Background())
	if err != nil {
		t.Fatal(err)
	}

	long := strings.Repeat("\x01", 8<<20)
	tensors := func(name, datatype string) []*oip.ModelInferRequest_InferInputTensor {
		return []*oip.ModelInferRequest_InferInputTensor{{Name: name, Datatype: datatype, Shape: []int64{1, 2}}, {Name: "b", Datatype: "FP32", Shape: []int64{1, 2}}}
	}
	for name, r := range map[string]*oip.ModelInferRequest{
		"model":     {ModelName: long},
		"version":   {ModelName: "sum", ModelVersion: long},
		"id":        {ModelName: "sum", Id: long},
		"input":     {ModelName: "sum", Inputs: tensors(long, "FP32")},
		"datatype":  {ModelName: "sum", Inputs: tensors("a", long)},
		"output":    {ModelName: "sum", Outputs: []*oip.ModelInferRequest_InferRequestedOutputTensor{{Name: long}}},
		"parameter": {ModelName: "sum", Inputs: []*oip.ModelInferRequest_InferInputTensor{{Parameters: map[string]*oip.InferParameter{"shared_memory_" + long: whole(1)}}}},
	} {
		_, err := c.ModelInfer(context.Background(), r, grpc.MaxCallSendMsgSize(64<<20))
		if status.Code(err) != codes.InvalidArgument || len(err.Error()) > 2*textMax {
			t.Errorf("%s: an error of %d bytes: %.200s", name, len(err.Error()), err)
		}
	}

	// Messages of other calls are short, but may consist of one name.
	if _, err := c.ModelMetadata(context.Background(), &oip.ModelMetadataRequest{Name: long[:otherMax-16]}); status.Code(err) != codes.NotFound || len(err.Error()) > 2*textMax {
		t.Errorf("metadata: an error of %d bytes: %.200s", len(err.Error()), err)
	}

	body := `{"inputs":[{"name":"` + strings.Repeat("é", 1<<20) + `","shape":[1],"datatype":"FP32","data":[1]}]}`
	if code, _, text := call(t, "POST", "http://"+server+"/v2/models/sum/infer", strings.NewReader(body)); code != 400 || len(text) > 2*textMax {
		t.Errorf("REST: %d, %d bytes: %.200s", code, len(text), text)
	}

	if err := stream.Send(sumRequest(floats(1, 2), floats(3, 4))); err != nil {
		t.Fatal(err)
	}
	if r, err := stream.Recv(); err != nil || r.ErrorMessage != "" {
		t.Errorf("a stream on the same connection: %v %v", r, err)
	}
}

// TestTypedContentsCountAsParsed: an integer of gRPC's typed contents has one byte on the wire and up to eight in
// memory. The bound on the memory of messages also holds for these eight, and no more are parsed than the shape takes.
func TestTypedContentsCountAsParsed(t *testing.T) {
	const elements, bound, most = 1 << 20, 4 << 20, 20 << 20
	g, _, addr := serving(t, Options{MemoryMax: bound}, nil)
	c := oip.NewGRPCInferenceServiceClient(dialRPC(t, addr))
	for _, x := range []struct {
		shape int64
		code  codes.Code
	}{{elements, codes.ResourceExhausted}, {2, codes.InvalidArgument}} {
		request := &oip.ModelInferRequest{ModelName: "sum", Inputs: []*oip.ModelInferRequest_InferInputTensor{
			{Name: "a", Datatype: "INT64", Shape: []int64{x.shape}, Contents: &oip.InferTensorContents{Int64Contents: make([]int64, elements)}}}}
		var err error
		took := memcost.Allocated(func() { _, err = c.ModelInfer(context.Background(), request) })
		if status.Code(err) != x.code || took > most {
			t.Errorf("shape [%d]: %v, %d MiB of memory", x.shape, err, took>>20)
		}
	}
	until(t, func() bool { runtime.GC(); return g.memory.used.Load() == 0 })
}
