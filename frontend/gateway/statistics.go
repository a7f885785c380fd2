package gateway

import (
	"cmp"
	"context"
	"io"
	"net/http"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"downbeat.dev/core/guard"
	"downbeat.dev/core/model"
	"downbeat.dev/core/observe"
	"downbeat.dev/frontend/gateway/clients"
	"downbeat.dev/frontend/gateway/oip"
)

func (s *grpcServer) ModelConfig(ctx context.Context, r *oip.ModelConfigRequest) (*oip.ModelConfigResponse, error) {
	m, f := s.g.resolveModel(ctx, r.Name, r.Version)
	if f != nil {
		return nil, f.GRPCStatus().Err()
	}
	return &oip.ModelConfigResponse{Config: modelConfig(m)}, nil
}

func (s *grpcServer) ModelStatistics(ctx context.Context, r *oip.ModelStatisticsRequest) (*oip.ModelStatisticsResponse, error) {
	if r.Name != "" {
		if _, f := s.g.resolveModel(ctx, r.Name, r.Version); f != nil {
			return nil, f.GRPCStatus().Err()
		}
	}
	return s.g.modelStatistics(clientOf(ctx), r.Name, r.Version), nil
}

func (s *grpcServer) RepositoryIndex(ctx context.Context, r *oip.RepositoryIndexRequest) (*oip.RepositoryIndexResponse, error) {
	return s.g.repositoryIndex(clientOf(ctx), r.Ready), nil
}

// repositoryIndex lists the models that a client may use.
func (g *Gateway) repositoryIndex(c *clients.Client, ready bool) *oip.RepositoryIndexResponse {
	r := new(oip.RepositoryIndexResponse)
	models := g.listModels()
	versions := map[string]bool{} // models listed with a version
	for _, m := range models {
		versions[m.Name] = versions[m.Name] || m.Version != ""
	}

	// An entry without a version describes the model as a whole; entries with a version say more.
	for _, m := range models {
		if !c.Allows(m.Name) || m.Version == "" && versions[m.Name] {
			continue
		}
		entry := &oip.RepositoryIndexResponse_ModelIndex{Name: m.Name, Version: m.Version, State: "READY"}
		if !m.Ready {
			if ready {
				continue
			}
			entry.State, entry.Reason = "UNAVAILABLE", cmp.Or(m.Reason, "no backend serves it")
		}
		r.Models = append(r.Models, entry)
	}
	return r
}

// modelStatistics reports the statistics of the models that a client may use.
func (g *Gateway) modelStatistics(c *clients.Client, name, version string) *oip.ModelStatisticsResponse {
	r := new(oip.ModelStatisticsResponse)

	// Only the scheduler knows batches. Callers compare them with requests that were just answered, so take a fresh
	// snapshot; one serves all models.
	var found *observe.Snapshot
	if s := g.process.Scheduler(); s != nil {
		found = s.Fresh()
	}

	for _, m := range g.listModels() {
		if c.Allows(m.Name) && (name == "" || m.Name == name && (version == "" || m.Version == version)) {
			s := g.metrics.reportStatistics(m)
			if found != nil {
				fillBatches(s, found, m.ID)
			}
			r.ModelStats = append(r.ModelStats, s)
		}
	}
	return r
}

// fillBatches adds the batch part of Triton's statistics: the batches of the model and of its shape classes.
func fillBatches(s *oip.ModelStatistics, found *observe.Snapshot, id uint32) {
	var batches, exec []uint64 // by size
	for _, m := range found.Models {
		whole, class := model.SplitVersion(m.Version)
		if m.Name != s.Name || m.ID != id && (class == "" || whole != s.Version) {
			continue
		}

		s.ExecutionCount += m.Batches
		more := max(0, len(m.Ran)-len(batches))
		batches, exec = append(batches, make([]uint64, more)...), append(exec, make([]uint64, more)...)
		for size, ran := range m.Ran {
			batches[size] += ran.Batches
			exec[size] += uint64(ran.Exec)
		}
	}

	for size, n := range batches {
		if n > 0 {
			// Inputs are fetched and outputs sent concurrently with batches, so they have no time of their own.
			beside := &oip.StatisticDuration{Count: n}
			s.BatchStats = append(s.BatchStats, &oip.InferBatchStatistics{BatchSize: uint64(size), ComputeInput: beside,
				ComputeInfer: &oip.StatisticDuration{Count: n, Ns: exec[size]}, ComputeOutput: beside})
		}
	}
}

func (g *Gateway) restConfig(w http.ResponseWriter, r *http.Request) {
	m, f := g.resolveModel(r.Context(), r.PathValue("model"), r.PathValue("version"))
	if f != nil {
		writeFault(w, f)
		return
	}
	writeProto(w, modelConfig(m))
}

func (g *Gateway) restStats(w http.ResponseWriter, r *http.Request) {
	name, version := r.PathValue("model"), r.PathValue("version")
	if name != "" {
		if _, f := g.resolveModel(r.Context(), name, version); f != nil {
			writeFault(w, f)
			return
		}
	}
	writeProto(w, g.modelStatistics(clientOf(r.Context()), name, version))
}

// indexBodyMax bounds the body of an index request, an object with one field.
const indexBodyMax = 4 << 10

func (g *Gateway) restIndex(w http.ResponseWriter, r *http.Request) {
	ready, f := wantsReady(http.MaxBytesReader(w, r.Body, indexBodyMax))
	if f != nil {
		writeFault(w, f)
		return
	}

	all := []map[string]string{}
	for _, m := range g.repositoryIndex(clientOf(r.Context()), ready).Models {
		all = append(all, map[string]string{"name": m.Name, "version": m.Version, "state": m.State, "reason": m.Reason})
	}
	guard.WriteJSON(w, http.StatusOK, all)
}

// wantsReady reads the body of an index request, which may limit it to ready models. An empty body requests all.
func wantsReady(body io.Reader) (bool, *fault) {
	text, err := io.ReadAll(body)
	if err != nil {
		return false, bodyFault(err, indexBodyMax)
	}
	if len(text) == 0 {
		return false, nil
	}

	ready := false
	s := &jsonScanner{text: text}
	s.eachMember(func(key string) {
		if key == "ready" {
			ready = s.readBoolean()
		} else {
			s.skipAny()
		}
	})
	return ready, s.finish()
}

// writeProto writes a message as Triton's REST extensions do: with the proto's names, 64-bit numbers as numbers
// (protojson makes them strings), and every field except unset messages.
func writeProto(w http.ResponseWriter, m proto.Message) {
	guard.WriteJSON(w, http.StatusOK, plainJSON(m.ProtoReflect()))
}

func plainJSON(m protoreflect.Message) map[string]any {
	out := map[string]any{}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		v := m.Get(f)
		name := string(f.Name())

		switch {
		case f.IsMap():
			entries := map[string]any{}
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				entries[k.String()] = plainValue(f.MapValue(), v)
				return true
			})
			out[name] = entries
		case f.IsList():
			list := make([]any, v.List().Len())
			for k := range list {
				list[k] = plainValue(f, v.List().Get(k))
			}
			out[name] = list
		case f.HasPresence() && !m.Has(f):
		default:
			out[name] = plainValue(f, v)
		}
	}
	return out
}

func plainValue(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return plainJSON(v.Message())
	case protoreflect.EnumKind:
		return string(f.Enum().Values().ByNumber(v.Enum()).Name())
	}
	return v.Interface()
}
