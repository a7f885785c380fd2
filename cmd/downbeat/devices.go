//go:build linux

package main

import (
	"downbeat.dev/cuda/regions"
	"downbeat.dev/frontend/gateway"
)

// deviceMemory opens clients' memory regions on this host's GPUs for the gateway.
type deviceMemory struct{ regions.Devices }

// OpenRegion implements gateway.DeviceMemory.
func (m *deviceMemory) OpenRegion(handle [gateway.HandleBytes]byte, device int, size int64) (gateway.DeviceRegion, error) {
	r, err := m.Devices.OpenRegion(handle, device, size)
	if err != nil {
		return nil, err // return an untyped nil, not an interface that holds a nil region
	}
	return r, nil
}
