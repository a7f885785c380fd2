package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"downbeat.dev/core/wire"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/oip"
)

// streamDepth bounds the requests under way on one stream; the next is read when one has ended.
const streamDepth = 256

// ModelStreamInfer answers each request of a stream as soon as it is done, with the request's id:
// answers may overtake each other, as Triton's may.
func (s *grpcServer) ModelStreamInfer(stream grpc.BidiStreamingServer[oip.ModelInferRequest, oip.ModelStreamInferResponse]) error {
	var wait sync.WaitGroup
	defer wait.Wait()
	var send sync.Mutex
	slots := make(chan struct{}, streamDepth)
	for {
		m, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			reply := s.g.streamInfer(stream.Context(), m)
			send.Lock()
			defer send.Unlock()
			_ = stream.Send(reply) // a broken stream ends the loop above
		})
	}
}

// streamInfer runs one request of a stream through the same code as a single one.
func (g *Gateway) streamInfer(ctx context.Context, r *oip.ModelInferRequest) *oip.ModelStreamInferResponse {
	failed := func(text string) *oip.ModelStreamInferResponse {
		return &oip.ModelStreamInferResponse{ErrorMessage: text, InferResponse: &oip.ModelInferResponse{ModelName: r.ModelName, ModelVersion: r.ModelVersion, Id: r.Id}}
	}
	text, err := proto.Marshal(r)
	if err != nil {
		return failed(err.Error())
	}
	m := messages.Get().(*inferMessage)
	if err := m.decode(text); err != nil {
		m.release()
		return failed(err.Error())
	}
	reply, f := g.grpcInfer(ctx, m)
	if f != nil {
		return failed(f.text)
	}
	defer reply.release()
	out := new(oip.ModelInferResponse)
	if err := proto.Unmarshal(reply.append(nil), out); err != nil {
		return failed(err.Error())
	}
	return &oip.ModelStreamInferResponse{InferResponse: out}
}

func (s *grpcServer) ModelConfig(_ context.Context, r *oip.ModelConfigRequest) (*oip.ModelConfigResponse, error) {
	m, f := s.g.model(r.Name, r.Version)
	if f != nil {
		return nil, f.GRPCStatus().Err()
	}
	return &oip.ModelConfigResponse{Config: modelConfig(m)}, nil
}

func (s *grpcServer) ModelStatistics(_ context.Context, r *oip.ModelStatisticsRequest) (*oip.ModelStatisticsResponse, error) {
	if r.Name != "" {
		if _, f := s.g.model(r.Name, r.Version); f != nil {
			return nil, f.GRPCStatus().Err()
		}
	}
	return s.g.statistics(r.Name, r.Version), nil
}

func (s *grpcServer) RepositoryIndex(_ context.Context, r *oip.RepositoryIndexRequest) (*oip.RepositoryIndexResponse, error) {
	return s.g.index(r.Ready), nil
}

var dataTypes = map[string]oip.DataType{"BOOL": 1, "UINT8": 2, "UINT16": 3, "UINT32": 4, "UINT64": 5, "INT8": 6, "INT16": 7,
	"INT32": 8, "INT64": 9, "FP16": 10, "FP32": 11, "FP64": 12, "BYTES": 13, "BF16": 14}

// modelConfig tells what Triton's clients look for in a model's configuration.
func modelConfig(m *frontend.Model) *oip.ModelConfig {
	c := &oip.ModelConfig{Name: m.Name, Platform: m.Platform, MaxBatchSize: int32(min(m.BatchMax, rowsMax)), Backend: serverName}
	for _, t := range m.Inputs {
		c.Input = append(c.Input, &oip.ModelInput{Name: t.Name, DataType: dataTypes[t.Datatype], Format: imageFormat(t), Dims: t.Shape})
	}
	for _, t := range m.Outputs {
		c.Output = append(c.Output, &oip.ModelOutput{Name: t.Name, DataType: dataTypes[t.Datatype], Dims: t.Shape})
	}
	return c
}

// imageFormat guesses an image tensor's layout from where its one or three channels are.
func imageFormat(t wire.Tensor) oip.ModelInput_Format {
	channels := func(d int64) bool { return d == 1 || d == 3 }
	switch {
	case len(t.Shape) != 3:
	case channels(t.Shape[0]):
		return oip.ModelInput_FORMAT_NCHW
	case channels(t.Shape[2]):
		return oip.ModelInput_FORMAT_NHWC
	}
	return oip.ModelInput_FORMAT_NONE
}

func (g *Gateway) index(ready bool) *oip.RepositoryIndexResponse {
	r := new(oip.RepositoryIndexResponse)
	for _, m := range g.client.Models() {
		entry := &oip.RepositoryIndexResponse_ModelIndex{Name: m.Name, Version: m.Version, State: "READY"}
		if !m.Ready {
			if ready {
				continue
			}
			entry.State, entry.Reason = "UNAVAILABLE", "no backend serves it"
		}
		r.Models = append(r.Models, entry)
	}
	return r
}

func (g *Gateway) statistics(name, version string) *oip.ModelStatisticsResponse {
	r := new(oip.ModelStatisticsResponse)
	for _, m := range g.client.Models() {
		if name == "" || m.Name == name && (version == "" || m.Version == version) {
			s := g.metrics.statistics(m)
			if g.watch != nil {
				g.watch.batches(s, m.ID)
			}
			r.ModelStats = append(r.ModelStats, s)
		}
	}
	return r
}

func (g *Gateway) restConfig(w http.ResponseWriter, r *http.Request) {
	m, f := g.model(r.PathValue("model"), r.PathValue("version"))
	if f != nil {
		writeFault(w, f)
		return
	}
	writeProto(w, modelConfig(m))
}

func (g *Gateway) restStats(w http.ResponseWriter, r *http.Request) {
	name, version := r.PathValue("model"), r.PathValue("version")
	if name != "" {
		if _, f := g.model(name, version); f != nil {
			writeFault(w, f)
			return
		}
	}
	writeProto(w, g.statistics(name, version))
}

func (g *Gateway) restIndex(w http.ResponseWriter, _ *http.Request) {
	all := []map[string]string{}
	for _, m := range g.index(false).Models {
		all = append(all, map[string]string{"name": m.Name, "version": m.Version, "state": m.State, "reason": m.Reason})
	}
	writeJSON(w, http.StatusOK, all)
}

// writeProto writes a message as Triton's REST extensions do: the proto's names, 64-bit numbers as
// numbers (protojson makes them strings), and every field.
func writeProto(w http.ResponseWriter, m proto.Message) {
	writeJSON(w, http.StatusOK, plain(m.ProtoReflect()))
}

func plain(m protoreflect.Message) map[string]any {
	out := map[string]any{}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		v := m.Get(f)
		if !f.IsList() {
			out[string(f.Name())] = plainValue(f, v)
			continue
		}
		list := make([]any, v.List().Len())
		for k := range list {
			list[k] = plainValue(f, v.List().Get(k))
		}
		out[string(f.Name())] = list
	}
	return out
}

func plainValue(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return plain(v.Message())
	case protoreflect.EnumKind:
		return string(f.Enum().Values().ByNumber(v.Enum()).Name())
	}
	return v.Interface()
}
