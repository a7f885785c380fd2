package gateway

import (
	"context"
	"io"
	"net/http"

	"downbeat.dev/core/guard"
	"downbeat.dev/frontend/gateway/oip"
)

// memoryRoutes registers the shared memory extensions. Without a GPU, CUDA's status and unregister calls work,
// because Triton's clients make them first, but register is refused.
func (g *Gateway) memoryRoutes(mux *http.ServeMux) {
	const system, cuda = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
	for _, region := range []string{"", "/region/{region}"} {
		mux.HandleFunc("GET "+system+region+"/status", g.restMemoryStatus)
		mux.HandleFunc("POST "+system+region+"/unregister", g.restMemoryUnregister(formSystem))
		mux.HandleFunc("GET "+cuda+region+"/status", g.restDeviceStatus)
		mux.HandleFunc("POST "+cuda+region+"/unregister", g.restMemoryUnregister(formCUDA))
	}
	mux.HandleFunc("POST "+system+"/region/{region}/register", g.restMemoryRegister)
	mux.HandleFunc("POST "+cuda+"/region/{region}/register", g.restDeviceRegister)
}

type restRegion struct {
	Name   string `json:"name"`
	Key    string `json:"key"`
	Offset int64  `json:"offset"`
	Size   int64  `json:"byte_size"`
}

func (g *Gateway) restMemoryStatus(w http.ResponseWriter, r *http.Request) {
	found, f := g.regions.listRegions(formSystem, r.PathValue("region"))
	if f != nil {
		writeFault(w, f)
		return
	}
	all := make([]restRegion, len(found))
	for i, region := range found {
		all[i] = restRegion{region.name, region.key, region.offset, region.size}
	}
	guard.WriteJSON(w, http.StatusOK, all)
}

func (g *Gateway) restMemoryUnregister(form string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		g.regions.unregisterRegion(form, r.PathValue("region"))
		guard.WriteJSON(w, http.StatusOK, struct{}{})
	}
}

// registerBodyMax bounds the body of a register request, an object with three fields.
const registerBodyMax = 4 << 10

func (g *Gateway) restMemoryRegister(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, registerBodyMax))
	if err != nil {
		writeFault(w, bodyFault(err, registerBodyMax))
		return
	}

	var key string
	var offset, size int64
	s := &jsonScanner{text: text}
	s.eachMember(func(field string) {
		switch field {
		case "key":
			key = s.readString()
		case "offset":
			offset = s.readInteger()
		case "byte_size":
			size = s.readInteger()
		default:
			s.skipAny()
		}
	})
	f := s.finish()

	// JSON's numbers have a sign, the registry's do not.
	if f == nil && (offset < 0 || size < 0) {
		f = invalidFault("body: offset %d and byte_size %d: must not be negative", offset, size)
	}
	if f == nil {
		f = g.regions.registerRegion(r.PathValue("region"), key, uint64(offset), uint64(size))
	}
	if f != nil {
		writeFault(w, f)
		return
	}
	guard.WriteJSON(w, http.StatusOK, struct{}{})
}

// SystemSharedMemoryStatus returns the registered regions.
func (s *grpcServer) SystemSharedMemoryStatus(_ context.Context, r *oip.SystemSharedMemoryStatusRequest) (*oip.SystemSharedMemoryStatusResponse, error) {
	found, f := s.g.regions.listRegions(formSystem, r.Name)
	if f != nil {
		return nil, f.GRPCStatus().Err()
	}
	all := map[string]*oip.SystemSharedMemoryStatusResponse_RegionStatus{}
	for _, region := range found {
		all[region.name] = &oip.SystemSharedMemoryStatusResponse_RegionStatus{Name: region.name, Key: region.key,
			Offset: uint64(region.offset), ByteSize: uint64(region.size)}
	}
	return &oip.SystemSharedMemoryStatusResponse{Regions: all}, nil
}

// SystemSharedMemoryRegister registers a region.
func (s *grpcServer) SystemSharedMemoryRegister(_ context.Context, r *oip.SystemSharedMemoryRegisterRequest) (*oip.SystemSharedMemoryRegisterResponse, error) {
	if f := s.g.regions.registerRegion(r.Name, r.Key, r.Offset, r.ByteSize); f != nil {
		return nil, f.GRPCStatus().Err()
	}
	return new(oip.SystemSharedMemoryRegisterResponse), nil
}

// SystemSharedMemoryUnregister removes a region, or all of them.
func (s *grpcServer) SystemSharedMemoryUnregister(_ context.Context, r *oip.SystemSharedMemoryUnregisterRequest) (*oip.SystemSharedMemoryUnregisterResponse, error) {
	s.g.regions.unregisterRegion(formSystem, r.Name)
	return new(oip.SystemSharedMemoryUnregisterResponse), nil
}
