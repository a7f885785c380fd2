package gateway

import (
	"bytes"
	"context"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/oip"
	"downbeat.dev/frontend/internal/echo"
)

// rpc returns a connection to a gateway over the test models.
func rpc(t testing.TB, o Options) (*grpc.ClientConn, *echo.System) {
	t.Helper()
	return rpcWith(t, func(*frontend.Client) Options { return o })
}

// rpcWith is rpc with options that depend on the client.
func rpcWith(t testing.TB, options func(*frontend.Client) Options) (*grpc.ClientConn, *echo.System) {
	t.Helper()
	c, s := client(t, compute)
	return connectTo(t, New(c, options(c))), s
}

// connectTo serves a gateway over gRPC and connects to it.
func connectTo(t testing.TB, g *Gateway) *grpc.ClientConn {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- g.Serve(ctx, nil, ln) }()
	conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return conn
}

func floats(v ...float32) (b []byte) {
	for _, f := range v {
		b = le.AppendUint32(b, math.Float32bits(f))
	}
	return b
}

func sumRequest(a, b []byte) *oip.ModelInferRequest {
	return &oip.ModelInferRequest{ModelName: "sum", Id: "7", RawInputContents: [][]byte{a, b}, Inputs: []*oip.ModelInferRequest_InferInputTensor{
		{Name: "a", Datatype: "FP32", Shape: []int64{int64(len(a) / 8), 2}}, {Name: "b", Datatype: "FP32", Shape: []int64{int64(len(b) / 8), 2}}}}
}

func whole(n int64) *oip.InferParameter {
	return &oip.InferParameter{ParameterChoice: &oip.InferParameter_Int64Param{Int64Param: n}}
}

func TestGRPCInfer(t *testing.T) {
	conn, _ := rpc(t, Options{})
	c := oip.NewGRPCInferenceServiceClient(conn)
	ctx := context.Background()
	r, err := c.ModelInfer(ctx, sumRequest(floats(1, 2, 3, 400), floats(10, 20, 30, 40)))
	if err != nil {
		t.Fatal(err)
	}
	want := &oip.ModelInferResponse{ModelName: "sum", ModelVersion: "1", Id: "7", RawOutputContents: [][]byte{floats(11, 22, 33, 440), {0, 0, 0, 1}},
		Outputs: []*oip.ModelInferResponse_InferOutputTensor{{Name: "sum", Datatype: "FP32", Shape: []int64{2, 2}}, {Name: "big", Datatype: "BOOL", Shape: []int64{2, 2}}}}
	if !proto.Equal(r, want) {
		t.Errorf("%v", protojson.Format(r))
	}
	typed := &oip.ModelInferRequest{ModelName: "image", ModelVersion: "1", Parameters: map[string]*oip.InferParameter{"timeout": whole(30e6), "priority": {ParameterChoice: &oip.InferParameter_Uint64Param{Uint64Param: 2}}},
		Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "pixels", Datatype: "UINT8", Shape: []int64{3, 2, 2},
			Contents: &oip.InferTensorContents{UintContents: []uint32{1, 9, 3, 255, 0, 0, 0, 0, 0, 0, 0, 0}}}},
		Outputs: []*oip.ModelInferRequest_InferRequestedOutputTensor{{Name: "scores", Parameters: map[string]*oip.InferParameter{"classification": whole(1)}}}}
	r, err = c.ModelInfer(ctx, typed)
	if err != nil || r.Outputs[0].Datatype != "BYTES" || !slices.Equal(r.Outputs[0].Shape, []int64{1}) || string(r.RawOutputContents[0][4:]) != "245.000000:3" {
		t.Errorf("%v %v", r, err)
	}
	text := &oip.ModelInferRequest{ModelName: "text", Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "in", Datatype: "BYTES", Shape: []int64{2, 1},
		Contents: &oip.InferTensorContents{BytesContents: [][]byte{[]byte("x"), {}}}}}}
	r, err = c.ModelInfer(ctx, text)
	if err != nil || string(r.RawOutputContents[0]) != "\x03\x00\x00\x00<x>\x02\x00\x00\x00<>" {
		t.Errorf("%v %v", r, err)
	}
	if r, err = c.ModelInfer(ctx, text, grpc.UseCompressor("gzip")); err != nil || len(r.RawOutputContents[0]) != 13 {
		t.Errorf("packed: %v %v", r, err)
	}
	large := make([]float32, 2*512)
	for i := range large {
		large[i] = float32(i)
	}
	r, err = c.ModelInfer(ctx, sumRequest(floats(large...), make([]byte, 8*512)))
	if err != nil || !bytes.Equal(r.RawOutputContents[0], floats(large...)) {
		t.Errorf("512 rows: %v", err)
	}
}

func TestGRPCRefuses(t *testing.T) {
	conn, _ := rpc(t, Options{})
	c := oip.NewGRPCInferenceServiceClient(conn)
	one, two := floats(1, 2), floats(3, 4)
	change := func(f func(*oip.ModelInferRequest)) *oip.ModelInferRequest {
		r := sumRequest(one, two)
		f(r)
		return r
	}
	for _, bad := range []struct {
		name string
		r    *oip.ModelInferRequest
		code codes.Code
		want string
	}{
		{"model", change(func(r *oip.ModelInferRequest) { r.ModelName = "nope" }), codes.NotFound, `Request for unknown model: 'nope' is not found`},
		{"version", change(func(r *oip.ModelInferRequest) { r.ModelVersion = "4" }), codes.NotFound, `Request for unknown model: 'sum' version '4' is not found`},
		{"raw count", change(func(r *oip.ModelInferRequest) { r.RawInputContents = r.RawInputContents[:1] }), codes.InvalidArgument, "raw_input_contents: 1 tensors: must be one per input, 2 ("},
		{"raw size", sumRequest(one, floats(1)), codes.InvalidArgument, `input "b": shape [0 2]: 0 rows`},
		{"both", change(func(r *oip.ModelInferRequest) {
			r.Inputs[0].Contents = &oip.InferTensorContents{Fp32Contents: []float32{1}}
		}), codes.InvalidArgument, "besides raw_input_contents"},
		{"wrong contents", change(func(r *oip.ModelInferRequest) {
			r.RawInputContents = nil
			r.Inputs[0].Contents = &oip.InferTensorContents{IntContents: []int32{1, 2}}
		}), codes.InvalidArgument, "FP32 elements lie in fp32_contents"},
		{"nothing", change(func(r *oip.ModelInferRequest) { r.RawInputContents = nil }), codes.InvalidArgument, `input "a": has no data`},
		{"half", &oip.ModelInferRequest{ModelName: "sum", Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "a", Datatype: "FP16", Contents: &oip.InferTensorContents{}}, {}}}, codes.InvalidArgument, "use raw_input_contents"},
		{"timeout", change(func(r *oip.ModelInferRequest) { r.Parameters = map[string]*oip.InferParameter{"timeout": whole(-1)} }), codes.InvalidArgument, "parameter timeout: -1 µs: must be within"},
		{"timeout type", change(func(r *oip.ModelInferRequest) {
			r.Parameters = map[string]*oip.InferParameter{"timeout": {ParameterChoice: &oip.InferParameter_StringParam{StringParam: "1"}}}
		}), codes.InvalidArgument, "parameter timeout: must be an int64_param"},
		{"priority", change(func(r *oip.ModelInferRequest) {
			r.Parameters = map[string]*oip.InferParameter{"priority": whole(-1)}
		}), codes.InvalidArgument, "parameter priority"},
		{"output", change(func(r *oip.ModelInferRequest) {
			r.Outputs = []*oip.ModelInferRequest_InferRequestedOutputTensor{{Name: "z"}}
		}), codes.InvalidArgument, `output "z": no such output`},
		{"dropped", sumRequest(floats(-1, 0), two), codes.DeadlineExceeded, "deadline_cannot_be_met"},
		{"full", sumRequest(floats(-2, 0), two), codes.ResourceExhausted, "queue_full"},
		{"no backend", sumRequest(floats(-6, 0), two), codes.Unavailable, "no_backend"},
		{"failed", sumRequest(floats(-8, 0), two), codes.Internal, "execution_failed"},
	} {
		_, err := c.ModelInfer(context.Background(), bad.r)
		if status.Code(err) != bad.code || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v, want %v with %s", bad.name, err, bad.code, bad.want)
		}
	}
	text, err := proto.Marshal(sumRequest(one, two))
	if err != nil {
		t.Fatal(err)
	}
	id := append(text, "\x1a\x01\xff"...)
	if err := conn.Invoke(context.Background(), oip.GRPCInferenceService_ModelInfer_FullMethodName, rawMessage(id), new(oip.ModelInferResponse), grpc.ForceCodecV2(rawCodec{})); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "must be UTF-8") {
		t.Errorf("id: %v", err)
	}
	// Bytes that are not a message.
	out := new(oip.ModelInferResponse)
	err = conn.Invoke(context.Background(), oip.GRPCInferenceService_ModelInfer_FullMethodName, rawMessage("\x0a\xff"), out, grpc.ForceCodecV2(rawCodec{}))
	if status.Code(err) != codes.InvalidArgument && status.Code(err) != codes.Internal {
		t.Errorf("broken bytes: %v", err)
	}
}

func TestGRPCDeadlineAndCancel(t *testing.T) {
	conn, s := rpc(t, Options{})
	c := oip.NewGRPCInferenceServiceClient(conn)
	if _, err := c.ServerLive(context.Background(), &oip.ServerLiveRequest{}); err != nil { // connected before a deadline runs
		t.Fatal(err)
	}
	s.Hold()
	within := 300 * time.Millisecond
	for ; len(s.Waiting()) == 0 && within < time.Minute; within *= 4 { // a busy host may use it up before submission
		ctx, cancel := context.WithTimeout(context.Background(), within)
		if _, err := c.ModelInfer(ctx, sumRequest(floats(1, 2), floats(1, 2))); status.Code(err) != codes.DeadlineExceeded {
			t.Error(err)
		}
		cancel()
	}
	if m := s.Waiting(); len(m) == 0 || m[0].Budget > int64(within/4) {
		t.Errorf("submitted %+v", m)
	}
	until(t, func() bool { return len(s.Canceled()) == len(s.Waiting()) })
	before := len(s.Waiting())
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		until(t, func() bool { return len(s.Waiting()) == before+1 })
		cancel()
	}()
	if _, err := c.ModelInfer(ctx, sumRequest(floats(1, 2), floats(1, 2))); status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	until(t, func() bool { return len(s.Canceled()) == before+1 })
}

func TestGRPCMetadata(t *testing.T) {
	conn, _ := rpc(t, Options{Version: "v9"})
	c := oip.NewGRPCInferenceServiceClient(conn)
	ctx := context.Background()
	if r, err := c.ServerLive(ctx, &oip.ServerLiveRequest{}); err != nil || !r.Live {
		t.Error(r, err)
	}
	if r, err := c.ServerReady(ctx, &oip.ServerReadyRequest{}); err != nil || r.Ready {
		t.Error(r, err)
	}
	if r, err := c.ServerMetadata(ctx, &oip.ServerMetadataRequest{}); err != nil || r.Version != "v9" || !slices.Contains(r.Extensions, "binary_tensor_data") {
		t.Error(r, err)
	}
	for name, want := range map[string]bool{"sum": true, "idle": false, "nope": false} {
		if r, err := c.ModelReady(ctx, &oip.ModelReadyRequest{Name: name}); err != nil || r.Ready != want {
			t.Error(name, r, err)
		}
	}
	m, err := c.ModelMetadata(ctx, &oip.ModelMetadataRequest{Name: "sum"})
	if err != nil || len(m.Inputs) != 2 || !slices.Equal(m.Inputs[1].Shape, []int64{-1, 2}) || m.Outputs[1].Datatype != "BOOL" || m.Platform != "test" {
		t.Error(m, err)
	}
	if _, err := c.ModelMetadata(ctx, &oip.ModelMetadataRequest{Name: "nope"}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	if r, err := c.ModelConfig(ctx, &oip.ModelConfigRequest{Name: "image"}); err != nil || r.Config.Input[0].DataType != oip.DataType_TYPE_UINT8 || r.Config.Input[0].Format != oip.ModelInput_FORMAT_NCHW {
		t.Error(r, err)
	}
	if r, err := c.RepositoryIndex(ctx, &oip.RepositoryIndexRequest{Ready: true}); err != nil || len(r.Models) != 4 {
		t.Error(r, err)
	}
	if _, err := c.ModelInfer(ctx, sumRequest(floats(1, 2), floats(1, 2))); err != nil {
		t.Error(err)
	}
	r, err := c.ModelStatistics(ctx, &oip.ModelStatisticsRequest{Name: "sum"})
	if err != nil || r.ModelStats[0].InferenceCount != 1 || r.ModelStats[0].InferenceStats.Success.Ns == 0 {
		t.Error(r, err)
	}
	h := healthpb.NewHealthClient(conn)
	if r, err := h.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil || r.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Error(r, err)
	}
	if _, err := h.Check(ctx, &healthpb.HealthCheckRequest{Service: "x"}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	w, err := h.Watch(ctx, &healthpb.HealthCheckRequest{Service: "inference.GRPCInferenceService"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := w.Recv(); err != nil || r.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Error(r, err)
	}
}

func TestGRPCStream(t *testing.T) {
	conn, _ := rpc(t, Options{})
	stream, err := oip.NewGRPCInferenceServiceClient(conn).ModelStreamInfer(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []float32{1, -2, 3} {
		r := sumRequest(floats(a, 0), floats(1, 1))
		r.Id = map[float32]string{1: "x", -2: "y", 3: "z"}[a]
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for {
		r, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got[r.InferResponse.Id] = r.ErrorMessage
		if r.ErrorMessage == "" && len(r.InferResponse.RawOutputContents[0]) != 8 {
			t.Errorf("%v", r)
		}
	}
	if len(got) != 3 || got["x"] != "" || got["z"] != "" || !strings.Contains(got["y"], "queue_full") {
		t.Errorf("%v", got)
	}
}

func TestGRPCToken(t *testing.T) {
	conn, _ := rpc(t, Options{Token: "secret"})
	c := oip.NewGRPCInferenceServiceClient(conn)
	if _, err := c.ModelInfer(context.Background(), sumRequest(floats(1, 2), floats(1, 2))); status.Code(err) != codes.Unauthenticated {
		t.Error(err)
	}
	ctx := metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer secret")
	if _, err := c.ModelInfer(ctx, sumRequest(floats(1, 2), floats(1, 2))); err != nil {
		t.Error(err)
	}
	if _, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
}

// TestReflection is a client that knows only what the server's reflection returns.
func TestReflection(t *testing.T) {
	conn, _ := rpc(t, Options{})
	stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "inference.GRPCInferenceService"}}); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.CloseSend()
	file := new(descriptorpb.FileDescriptorProto)
	if err := proto.Unmarshal(answer.GetFileDescriptorResponse().FileDescriptorProto[0], file); err != nil {
		t.Fatal(err)
	}
	described, err := protodesc.NewFile(file, new(protoregistry.Files))
	if err != nil {
		t.Fatal(err)
	}
	method := described.Services().ByName("GRPCInferenceService").Methods().ByName("ModelInfer")
	in, out := dynamicpb.NewMessage(method.Input()), dynamicpb.NewMessage(method.Output())
	if err := protojson.Unmarshal([]byte(`{"model_name":"sum","inputs":[{"name":"a","datatype":"FP32","shape":["2"],"contents":{"fp32_contents":[1,2]}},{"name":"b","datatype":"FP32","shape":["2"],"contents":{"fp32_contents":[3,4]}}]}`), in); err != nil {
		t.Fatal(err)
	}
	if err := conn.Invoke(context.Background(), "/inference.GRPCInferenceService/ModelInfer", in, out); err != nil {
		t.Fatal(err)
	}
	raw := out.Get(method.Output().Fields().ByName("raw_output_contents")).List().Get(0).Bytes()
	if !bytes.Equal(raw, floats(4, 6)) {
		t.Errorf("%x", raw)
	}
}

// TestPublishedNumbers compares the messages with the field numbers that KServe and Triton publish.
func TestPublishedNumbers(t *testing.T) {
	published := map[string]string{
		"ModelReadyRequest":                            "name=1 version=2",
		"ServerMetadataResponse":                       "name=1 version=2 extensions=3",
		"ModelMetadataResponse":                        "name=1 versions=2 platform=3 inputs=4 outputs=5",
		"ModelMetadataResponse.TensorMetadata":         "name=1 datatype=2 shape=3 parameters=4", // 4 is MLServer's
		"InferParameter":                               "bool_param=1 int64_param=2 string_param=3 double_param=4 uint64_param=5",
		"InferTensorContents":                          "bool_contents=1 int_contents=2 int64_contents=3 uint_contents=4 uint64_contents=5 fp32_contents=6 fp64_contents=7 bytes_contents=8",
		"ModelInferRequest":                            "model_name=1 model_version=2 id=3 parameters=4 inputs=5 outputs=6 raw_input_contents=7",
		"ModelInferRequest.InferInputTensor":           "name=1 datatype=2 shape=3 parameters=4 contents=5",
		"ModelInferRequest.InferRequestedOutputTensor": "name=1 parameters=2",
		"ModelInferResponse":                           "model_name=1 model_version=2 id=3 parameters=4 outputs=5 raw_output_contents=6",
		"ModelInferResponse.InferOutputTensor":         "name=1 datatype=2 shape=3 parameters=4 contents=5",
		"ModelStreamInferResponse":                     "error_message=1 infer_response=2",
		"InferStatistics":                              "success=1 fail=2 queue=3 compute_input=4 compute_infer=5 compute_output=6 cache_hit=7 cache_miss=8",
		"RepositoryIndexResponse.ModelIndex":           "name=1 version=2 state=3 reason=4",
		"ModelStatistics":                              "name=1 version=2 last_inference=3 inference_count=4 execution_count=5 inference_stats=6 batch_stats=7 memory_usage=8 response_stats=9",
	}
	for name, want := range published {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName("inference." + name))
		if err != nil {
			t.Error(err)
			continue
		}
		fields := d.(protoreflect.MessageDescriptor).Fields()
		var got []string
		for i := range fields.Len() {
			f := fields.Get(i)
			got = append(got, string(f.Name())+"="+string(rune('0'+f.Number())))
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: %s, published: %s", name, text, want)
		}
	}
}

// TestNamesOfNoModelAreNoLabels: a message that is refused while it is decoded names a model that was not looked up.
// Callers can invent any number of names, and each label stays in memory.
func TestNamesOfNoModelAreNoLabels(t *testing.T) {
	c, _ := client(t, compute)
	g := New(c, Options{})
	conn := connectTo(t, g)
	infer := oip.NewGRPCInferenceServiceClient(conn)
	for _, name := range []string{"invented-1", "invented-2", "sum"} {
		_, err := infer.ModelInfer(context.Background(), &oip.ModelInferRequest{ModelName: name, Parameters: map[string]*oip.InferParameter{"timeout": whole(-1)}})
		if status.Code(err) != codes.InvalidArgument {
			t.Fatal(err)
		}
	}

	// A name that is no text ended the process, because it can be no label. The generated types refuse to send it.
	raw := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), []byte{0xff})
	raw = append(protowire.AppendTag(raw, 5, protowire.BytesType), 0x80) // an input whose length is cut
	var reply []byte
	err := conn.Invoke(context.Background(), oip.GRPCInferenceService_ModelInfer_FullMethodName, &raw, &reply, grpc.ForceCodec(bytesCodec{}))
	if status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}

	// The name of a model remains a label.
	var labels []string
	counts := make(chan prometheus.Metric, 16)
	g.metrics.failure.Collect(counts)
	for close(counts); len(counts) > 0; {
		var m dto.Metric
		if err := (<-counts).Write(&m); err != nil {
			t.Fatal(err)
		}
		for _, l := range m.Label {
			if l.GetName() == "model" {
				labels = append(labels, l.GetValue())
			}
		}
	}
	slices.Sort(labels)
	if want := []string{"", "sum"}; !slices.Equal(labels, want) {
		t.Errorf("labels %q, want %q", labels, want)
	}
}
