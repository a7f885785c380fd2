package gateway

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"downbeat.dev/core/model"
	"downbeat.dev/core/observe"
	"downbeat.dev/frontend/gateway/oip"
)

// aliases exports the gateway's counts under Triton's metric names, for dashboards built for Triton. Each value is
// computed at collection from the statistics extension and the gateway's own metrics, so all three agree.
type aliases struct{ g *Gateway }

// alias returns the description of a metric with Triton's name.
func alias(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("nv_"+name, help, labels, nil)
}

var (
	modelLabels   = []string{"model", "version"}
	aliasSuccess  = alias("inference_request_success", "Requests answered with an output.", modelLabels...)
	aliasFailure  = alias("inference_request_failure", "Requests without an output, by Triton's reasons.", "model", "version", "reason")
	aliasCount    = alias("inference_count", "Inferences: rows answered.", modelLabels...)
	aliasExecs    = alias("inference_exec_count", "Batches run.", modelLabels...)
	aliasPending  = alias("inference_pending_request_count", "Requests queued now.", modelLabels...)
	aliasDuration = alias("inference_request_duration_us", "Time from arrival to output of the requests that were answered, in microseconds.", modelLabels...)
	aliasQueue    = alias("inference_queue_duration_us", "Time of these requests outside the other three parts: the queue, the network, the wait for a GPU.", modelLabels...)
	aliasInput    = alias("inference_compute_input_duration_us", "Time that backends took to fetch their inputs.", modelLabels...)
	aliasInfer    = alias("inference_compute_infer_duration_us", "Time that their batches took on the GPU.", modelLabels...)
	aliasOutput   = alias("inference_compute_output_duration_us", "Time that their outputs took to return.", modelLabels...)
	aliasHits     = alias("cache_num_hits_per_model", "Always 0: there is no cache.", modelLabels...)
	aliasMisses   = alias("cache_num_misses_per_model", "Always 0: there is no cache.", modelLabels...)
	aliasGPU      = alias("gpu_utilization", "Share of the last second that the GPU spent on batches.", "gpu_uuid")
)

// Describe implements prometheus.Collector.
func (a aliases) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{aliasSuccess, aliasFailure, aliasCount, aliasExecs, aliasPending, aliasDuration, aliasQueue, aliasInput, aliasInfer, aliasOutput,
		aliasHits, aliasMisses, aliasGPU} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (a aliases) Collect(out chan<- prometheus.Metric) {
	failures := a.g.metrics.failuresByAlias()
	for _, s := range a.g.modelStatistics(nil, "", "").ModelStats {
		a.collectModel(out, s, failures[modelKey{s.Name, s.Version}])
	}
	if s := a.g.process.Scheduler(); s != nil {
		collectAliases(out, s.Latest())
	}
}

// collectModel sends a model's metrics.
func (a aliases) collectModel(out chan<- prometheus.Metric, s *oip.ModelStatistics, failures map[string]float64) {
	counter := func(d *prometheus.Desc, v float64, more ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, append([]string{s.Name, s.Version}, more...)...)
	}
	micros := func(d *oip.StatisticDuration) float64 { return float64(d.Ns) / 1e3 }

	i := s.InferenceStats
	counter(aliasSuccess, float64(i.Success.Count))
	counter(aliasCount, float64(s.InferenceCount))
	counter(aliasDuration, micros(i.Success))
	counter(aliasQueue, micros(i.Queue))
	counter(aliasInput, micros(i.ComputeInput))
	counter(aliasInfer, micros(i.ComputeInfer))
	counter(aliasOutput, micros(i.ComputeOutput))
	counter(aliasHits, 0)
	counter(aliasMisses, 0)

	// Only the scheduler counts batches: a gateway without one exports no batch metrics, instead of 0.
	if a.g.process.Scheduler() != nil {
		counter(aliasExecs, float64(s.ExecutionCount))
	}

	// Every reason is exported, also at 0, so that a rate exists before the first failure.
	for _, reason := range tritonReasons {
		counter(aliasFailure, failures[reason], reason)
	}
}

// collectAliases sends the metrics that only the scheduler knows.
func collectAliases(out chan<- prometheus.Metric, s *observe.Snapshot) {
	for _, m := range s.Models {
		out <- prometheus.MustNewConstMetric(aliasPending, prometheus.GaugeValue, float64(m.Queued), m.Name, m.Version)
	}
	for _, g := range s.GPUs {
		out <- prometheus.MustNewConstMetric(aliasGPU, prometheus.GaugeValue, s.Busy[g.ID], g.Name)
	}
}

// tritonReasons are Triton's failure reasons.
var tritonReasons = []string{"REJECTED", "CANCELED", "BACKEND", "OTHER"}

// tritonReason maps a reason to Triton's: REJECTED did not run, BACKEND failed on its backend.
func tritonReason(reason string) string {
	switch reason {
	case model.DeadlineCannotBeMet.String(), model.DeadlinePast.String(), model.QueueFull.String(), model.FloorTooHigh.String():
		return "REJECTED"
	case model.Canceled.String():
		return "CANCELED"
	case model.ExecutionFailed.String(), model.InputUnavailable.String(), model.NoBackend.String(), model.BackendLost.String():
		return "BACKEND"
	}
	return "OTHER"
}

// failuresByAlias sums each model's failures by Triton's reasons. Calls that were refused before their model's
// version was known count to no model.
func (m *metrics) failuresByAlias() map[modelKey]map[string]float64 {
	// A vector reports its series only over a channel, and blocks until each is received.
	collected := make(chan prometheus.Metric)
	var wait sync.WaitGroup
	wait.Go(func() { m.failure.Collect(collected); close(collected) })
	defer wait.Wait()

	all := map[modelKey]map[string]float64{}
	for one := range collected {
		var d dto.Metric
		if one.Write(&d) != nil {
			continue
		}
		label := map[string]string{}
		for _, l := range d.Label {
			label[l.GetName()] = l.GetValue()
		}

		key := modelKey{label["model"], label["version"]}
		if all[key] == nil {
			all[key] = map[string]float64{}
		}

		// Triton has fewer reasons, so several of the gateway's add up to one.
		all[key][tritonReason(label["reason"])] += d.GetCounter().GetValue()
	}
	return all
}
