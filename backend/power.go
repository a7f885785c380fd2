package backend

import (
	"github.com/prometheus/client_golang/prometheus"

	"downbeat.dev/cuda"
)

// Triton's names for the values of the driver's management library.
var (
	powerLabel      = []string{"gpu_uuid"}
	descPower       = prometheus.NewDesc("nv_gpu_power_usage", "Power that the GPU draws, in watts.", powerLabel, nil)
	descPowerLimit  = prometheus.NewDesc("nv_gpu_power_limit", "Power that the GPU may draw, in watts.", powerLabel, nil)
	descEnergy      = prometheus.NewDesc("nv_energy_consumption", "Energy that the GPU has used since its driver was loaded, in joules.", powerLabel, nil)
	descMemoryTotal = prometheus.NewDesc("nv_gpu_memory_total_bytes", "Memory of the GPU, in bytes.", powerLabel, nil)
	descMemoryUsed  = prometheus.NewDesc("nv_gpu_memory_used_bytes", "Memory of the GPU that is in use by any process, in bytes.", powerLabel, nil)
)

// PowerMetrics returns a collector of the power, energy and memory of this host's GPUs under Triton's names, read on
// each collection. Values that a GPU does not report have no series; nor has a host without GPUs.
func PowerMetrics() prometheus.Collector { return powerMetrics(cuda.Inventory) }

// powerMetrics lists the GPUs.
type powerMetrics func() ([]cuda.GPU, error)

// Describe implements prometheus.Collector.
func (powerMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descPower, descPowerLimit, descEnergy, descMemoryTotal, descMemoryUsed} {
		out <- d
	}
}

// Collect implements prometheus.Collector. It may be called from any goroutine.
func (list powerMetrics) Collect(out chan<- prometheus.Metric) {
	// A host without GPUs, or without their driver, has no series.
	gpus, err := list()
	if err != nil {
		return
	}

	for i := range gpus {
		g := &gpus[i]
		tell := func(d *prometheus.Desc, kind prometheus.ValueType, v float64) {
			out <- prometheus.MustNewConstMetric(d, kind, v, g.UUID)
		}

		// Zero means unknown: even an idle GPU takes power.
		if g.Watts > 0 {
			tell(descPower, prometheus.GaugeValue, g.Watts)
		}
		if g.WattsMost > 0 {
			tell(descPowerLimit, prometheus.GaugeValue, g.WattsMost)
		}
		if g.Joules > 0 {
			tell(descEnergy, prometheus.CounterValue, g.Joules)
		}
		if g.MemoryBytes > 0 {
			tell(descMemoryTotal, prometheus.GaugeValue, float64(g.MemoryBytes))
			tell(descMemoryUsed, prometheus.GaugeValue, float64(g.MemoryBytes-g.MemoryFree))
		}
	}
}
