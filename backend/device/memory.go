package device

import "time"

// Footprint is the memory of a loaded model on its executor.
type Footprint struct {
	Static  int64 // bytes from Load to Unload: parameters and data prepared from them
	Shared  int64 // bytes of Static that an exit shares with its model; the executor holds them once
	Dynamic int64 // further bytes while its largest batch runs; 0: unknown, or none
	Warm    bool  // another executor of the process shares it and has run every batch size
}

// Memory is the memory that an executor holds, and the contents it has moved since its start.
type Memory struct {
	DeviceBytes, PinnedBytes   int64  // of models, held now: on the GPU, and evicted contents in pinned memory
	SlotBytes                  int64  // held on the GPU for slots
	Unpinned                   int    // slots that could not be pinned: their copies are slower and do not overlap
	Hits                       uint64 // contents already on the GPU when a batch needed them
	LoadsPinned, LoadsPageable uint64 // contents that were not, by where they were
	ToPinned, ToPageable       uint64 // evictions, by destination
	Freed                      uint64 // intermediates freed at the end of their batch
	BytesIn, BytesOut          uint64
	Pageable                   uint64        // evictions meant for pinned memory that used pageable memory
	LoadTime                   time.Duration // duration of loads on the GPU
}

// Add adds another executor's memory to m.
func (m *Memory) Add(o Memory) {
	m.DeviceBytes += o.DeviceBytes
	m.PinnedBytes += o.PinnedBytes
	m.SlotBytes += o.SlotBytes
	m.Unpinned += o.Unpinned
	m.Hits += o.Hits
	m.LoadsPinned += o.LoadsPinned
	m.LoadsPageable += o.LoadsPageable
	m.ToPinned += o.ToPinned
	m.ToPageable += o.ToPageable
	m.Freed += o.Freed
	m.BytesIn += o.BytesIn
	m.BytesOut += o.BytesOut
	m.Pageable += o.Pageable
	m.LoadTime += o.LoadTime
}
