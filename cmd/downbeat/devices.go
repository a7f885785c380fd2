//go:build linux

package main

import (
	"downbeat.dev/cuda/regions"
	"downbeat.dev/frontend/gateway"
)

// deviceMemory gives a gateway the GPUs of this host, where there are some, to read clients' regions from.
type deviceMemory struct{ regions.Devices }

// OpenRegion implements gateway.DeviceMemory.
func (m *deviceMemory) OpenRegion(handle [gateway.HandleBytes]byte, device int, size int64) (gateway.DeviceRegion, error) {
	r, err := m.Devices.OpenRegion(handle, device, size)
	if err != nil {
		return nil, err // no interface that holds a nil region
	}
	return r, nil
}
