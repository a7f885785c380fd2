package backend

import (
	"github.com/prometheus/client_golang/prometheus"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/model"
)

// The backend's own metrics, built when a reader asks. The scheduler's view of its GPUs is named downbeat_backend_….
var (
	gpuLabel    = []string{"gpu"}
	descUp      = prometheus.NewDesc("downbeat_gpu_up", "1 while the GPU answers, 0 when it is lost or hangs, or its latest 8 batches have all failed.", gpuLabel, nil)
	descBatches = prometheus.NewDesc("downbeat_gpu_batches_total", "Batches executed.", gpuLabel, nil)
	descRows    = prometheus.NewDesc("downbeat_gpu_rows_total", "Requests executed.", gpuLabel, nil)
	descFailed  = prometheus.NewDesc("downbeat_gpu_failed_total", "Requests that ended without an output, or were returned to the scheduler (backend_lost).", []string{"gpu", "reason"}, nil)
	descUnsent  = prometheus.NewDesc("downbeat_gpu_unsent_total", "Results that were not sent because the frontend was gone.", gpuLabel, nil)
	descAside   = prometheus.NewDesc("downbeat_gpu_fallback_models", "Models that run on the processor in fp32 because the GPU's kernels do not support them.", gpuLabel, nil)
	descLoaded  = prometheus.NewDesc("downbeat_gpu_loaded_models", "Models of which the GPU accepts batches.", gpuLabel, nil)
	descSlots   = prometheus.NewDesc("downbeat_gpu_unpinned_slots", "Slots whose memory could not be pinned: copies from them are slower and do not overlap with compute.", gpuLabel, nil)
	descSeconds = prometheus.NewDesc("downbeat_gpu_batch_seconds_total", "Time of batches: fetch (of their inputs), wait (for the GPU), execute.", []string{"gpu", "stage"}, nil)

	descSuspects = prometheus.NewDesc("downbeat_frontends_suspect", "Frontends whose inputs are overdue; backends read no inputs from them until they answer.", nil, nil)
	descDoubts   = prometheus.NewDesc("downbeat_frontend_suspicions_total", "Number of times that a frontend became suspect.", nil, nil)

	descOutputs = prometheus.NewDesc("downbeat_outputs_held_total", "Requests whose outputs should stay with the backend for the next stage: held, or refused because no slot was free; expired counts held outputs that nobody released.", []string{"result"}, nil)

	descHeld      = prometheus.NewDesc("downbeat_memory_bytes", "Bytes of model contents on the device, of evicted contents in pinned memory, and of slots on the device.", []string{"gpu", "place"}, nil)
	descHits      = prometheus.NewDesc("downbeat_memory_hits_total", "Contents that were on the GPU when a batch needed them.", gpuLabel, nil)
	descLoads     = prometheus.NewDesc("downbeat_memory_loads_total", "Contents that had to be loaded when a batch needed them, by their place before: pinned, pageable.", []string{"gpu", "from"}, nil)
	descEvictions = prometheus.NewDesc("downbeat_memory_evictions_total", "Contents evicted from the GPU, by their new place.", []string{"gpu", "to"}, nil)
	descFreed     = prometheus.NewDesc("downbeat_memory_freed_total", "Intermediates that ended with their batch.", gpuLabel, nil)
	descMoved     = prometheus.NewDesc("downbeat_memory_moved_bytes_total", "Bytes of contents copied, by direction.", []string{"gpu", "direction"}, nil)
	descUnpinned  = prometheus.NewDesc("downbeat_memory_unpinned_total", "Evictions to pinned memory that got pageable memory.", gpuLabel, nil)
	descLoadTime  = prometheus.NewDesc("downbeat_memory_load_seconds_total", "GPU time that loads took.", gpuLabel, nil)
)

// Describe implements prometheus.Collector.
func (b *Backend) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descUp, descBatches, descRows, descFailed, descUnsent, descAside, descSlots, descLoaded, descSeconds,
		descSuspects, descDoubts, descOutputs, descHeld, descHits, descLoads, descEvictions, descFreed, descMoved, descUnpinned, descLoadTime} {
		out <- d
	}
}

// Collect implements prometheus.Collector. It may be called from any goroutine until Close.
func (b *Backend) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.MustNewConstMetric(descSuspects, prometheus.GaugeValue, float64(b.peers.suspects.Load()))
	out <- prometheus.MustNewConstMetric(descDoubts, prometheus.CounterValue, float64(b.peers.doubts.Load()))

	held, refused, expired := b.holds.countRows()
	for result, n := range map[string]uint64{"held": held, "refused": refused, "expired": expired} {
		out <- prometheus.MustNewConstMetric(descOutputs, prometheus.CounterValue, float64(n), result)
	}

	for _, s := range b.Stats() {
		counter := func(d *prometheus.Desc, v float64, label ...string) {
			out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, append([]string{s.GPU}, label...)...)
		}
		gauge := func(d *prometheus.Desc, v float64, label ...string) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{s.GPU}, label...)...)
		}

		// A GPU that fails every batch is as good as down, although it answers.
		up := 1.0
		if s.Lost || s.Hung || s.Failing {
			up = 0
		}
		gauge(descUp, up)

		counter(descBatches, float64(s.Batches))
		counter(descRows, float64(s.Rows))
		counter(descUnsent, float64(s.Unsent))
		gauge(descAside, float64(s.Aside))
		gauge(descSlots, float64(s.Memory.Unpinned))
		gauge(descLoaded, float64(s.Loaded))
		counter(descSeconds, s.Fetch.Seconds(), "fetch")
		counter(descSeconds, s.Wait.Seconds(), "wait")
		counter(descSeconds, s.Busy.Seconds(), "execute")

		for r, n := range s.Failed {
			// Reason 0 means that the request has its output.
			if r > 0 {
				counter(descFailed, float64(n), model.Reason(r).String())
			}
		}

		// Emulated GPUs and processors load and evict no contents: series of zeros would only hide the others.
		if m := s.Memory; managesContents(m) {
			gauge(descHeld, float64(m.DeviceBytes), "device")
			gauge(descHeld, float64(m.PinnedBytes), "pinned")
			gauge(descHeld, float64(m.SlotBytes), "slots")
			counter(descHits, float64(m.Hits))
			counter(descLoads, float64(m.LoadsPinned), "pinned")
			counter(descLoads, float64(m.LoadsPageable), "pageable")
			counter(descEvictions, float64(m.ToPinned), "pinned")
			counter(descEvictions, float64(m.ToPageable), "pageable")
			counter(descFreed, float64(m.Freed))
			counter(descMoved, float64(m.BytesIn), "in")
			counter(descMoved, float64(m.BytesOut), "out")
			counter(descUnpinned, float64(m.Pageable))
			counter(descLoadTime, m.LoadTime.Seconds())
		}
	}
}

// managesContents reports whether model contents were loaded on a GPU by the memory manager. Every device has slots.
func managesContents(m device.Memory) bool {
	m.SlotBytes, m.Unpinned = 0, 0
	return m != (device.Memory{})
}
