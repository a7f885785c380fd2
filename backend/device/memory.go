package device

import "time"

// Footprint is what a loaded model takes on its executor.
type Footprint struct {
	Static  int64 // bytes from Load to Unload: parameters, and what is prepared of them
	Shared  int64 // bytes of Static that the model which it is an exit of holds, too: the executor holds them once
	Dynamic int64 // bytes more while its largest batch runs; 0: not known, or none
	Warm    bool  // another executor of the process shares it and has run every batch size
}

// Memory is what an executor holds, and what it has moved since its start.
type Memory struct {
	DeviceBytes, PinnedBytes   int64  // of models, held now: on the GPU, and of evicted contents in pinned memory
	SlotBytes                  int64  // held on the GPU for slots
	Unpinned                   int    // slots that could not be pinned: their copies are slower and do not overlap
	Hits                       uint64 // contents that were on the GPU when a batch needed them
	LoadsPinned, LoadsPageable uint64 // that were not, by where they were
	ToPinned, ToPageable       uint64 // evictions, by where to
	Freed                      uint64 // intermediates that ended with their batch
	BytesIn, BytesOut          uint64
	Pageable                   uint64        // evictions to pinned memory that got pageable memory
	LoadTime                   time.Duration // that loads took on the GPU
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
