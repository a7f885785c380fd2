package gateway

import (
	"context"
	"encoding/base64"
	"io"
	"net/http"

	"downbeat.dev/core/guard"
	"downbeat.dev/frontend/gateway/oip"
)

type restDevice struct {
	Name   string `json:"name"`
	Device int    `json:"device_id"`
	Size   int64  `json:"byte_size"`
}

// listDevice returns a region of device memory, or all of them if the name is empty. Without a GPU there are none.
func (g *Gateway) listDevice(name string) ([]*region, *fault) {
	if g.regions.countDevices() == 0 {
		return nil, nil
	}
	return g.regions.listRegions(formCUDA, name)
}

func (g *Gateway) restDeviceStatus(w http.ResponseWriter, r *http.Request) {
	found, f := g.listDevice(r.PathValue("region"))
	if f != nil {
		writeFault(w, f)
		return
	}

	all := make([]restDevice, len(found))
	for i, region := range found {
		all[i] = restDevice{region.name, region.deviceID, region.size}
	}
	guard.WriteJSON(w, http.StatusOK, all)
}

func (g *Gateway) restDeviceRegister(w http.ResponseWriter, r *http.Request) {
	// Without a device nothing can be opened, whatever the body says.
	if g.regions.countDevices() == 0 {
		writeFault(w, errCUDA())
		return
	}

	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, registerBodyMax))
	if err != nil {
		writeFault(w, bodyFault(err, registerBodyMax))
		return
	}

	f := g.registerDeviceJSON(r.PathValue("region"), text)
	if f != nil {
		writeFault(w, f)
		return
	}
	guard.WriteJSON(w, http.StatusOK, struct{}{})
}

// registerDeviceJSON registers the region that a REST request's body describes.
func (g *Gateway) registerDeviceJSON(name string, text []byte) *fault {
	var handle string
	var device, size int64

	s := &jsonScanner{text: text}
	s.eachMember(func(field string) {
		switch field {
		case "raw_handle":
			s.eachMember(func(field string) {
				if field == "b64" {
					handle = s.readString()
				} else {
					s.skipAny()
				}
			})
		case "device_id":
			device = s.readInteger()
		case "byte_size":
			size = s.readInteger()
		default:
			s.skipAny()
		}
	})
	if f := s.finish(); f != nil {
		return f
	}

	// Sizes are signed in JSON and unsigned in the registry.
	if size < 0 {
		return invalidFault("body: byte_size %d: must not be negative", size)
	}

	raw, err := base64.StdEncoding.DecodeString(handle)
	if err != nil {
		return invalidFault("body: raw_handle: b64: %.100q: must be %d bytes in base64: %v", handle, HandleBytes, err)
	}
	return g.regions.registerDevice(name, raw, device, uint64(size))
}

// CudaSharedMemoryStatus returns the registered regions of device memory.
func (s *grpcServer) CudaSharedMemoryStatus(_ context.Context, r *oip.CudaSharedMemoryStatusRequest) (*oip.CudaSharedMemoryStatusResponse, error) {
	found, f := s.g.listDevice(r.Name)
	if f != nil {
		return nil, f.GRPCStatus().Err()
	}

	all := map[string]*oip.CudaSharedMemoryStatusResponse_RegionStatus{}
	for _, region := range found {
		all[region.name] = &oip.CudaSharedMemoryStatusResponse_RegionStatus{Name: region.name, DeviceId: uint64(region.deviceID), ByteSize: uint64(region.size)}
	}
	return &oip.CudaSharedMemoryStatusResponse{Regions: all}, nil
}

// CudaSharedMemoryRegister registers a region of device memory; without a GPU it refuses.
func (s *grpcServer) CudaSharedMemoryRegister(_ context.Context, r *oip.CudaSharedMemoryRegisterRequest) (*oip.CudaSharedMemoryRegisterResponse, error) {
	if f := s.g.regions.registerDevice(r.Name, r.RawHandle, r.DeviceId, r.ByteSize); f != nil {
		return nil, f.GRPCStatus().Err()
	}
	return new(oip.CudaSharedMemoryRegisterResponse), nil
}

// CudaSharedMemoryUnregister removes a region of device memory, or all of them.
func (s *grpcServer) CudaSharedMemoryUnregister(_ context.Context, r *oip.CudaSharedMemoryUnregisterRequest) (*oip.CudaSharedMemoryUnregisterResponse, error) {
	s.g.regions.unregisterRegion(formCUDA, r.Name)
	return new(oip.CudaSharedMemoryUnregisterResponse), nil
}
