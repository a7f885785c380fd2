package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/model"
)

// The scheduler's metrics, created on each request for them.
var (
	modelLabels = []string{"model", "version"}
	descBatch   = prometheus.NewDesc("downbeat_inference_batch_size", "Requests per batch sent; _count is the number of batches.", modelLabels, nil)
	descCount   = prometheus.NewDesc("downbeat_scheduler_served_total", "Requests served, as counted by the scheduler.", modelLabels, nil)
	descQueued  = prometheus.NewDesc("downbeat_inference_queued_requests", "Requests queued now.", modelLabels, nil)
	descEnded   = prometheus.NewDesc("downbeat_scheduler_unserved_total", "Requests that ended without an output, as counted by the scheduler.", append([]string{"reason"}, modelLabels...), nil)
	descBusy    = prometheus.NewDesc("downbeat_backend_busy_ratio", "Share of the last second that the GPU spent on batches.", []string{"gpu", "subcluster"}, nil)
	descBusySum = prometheus.NewDesc("downbeat_backend_busy_seconds_total", "Time that the GPU spent on batches.", []string{"gpu", "subcluster"}, nil)
	descDemand  = prometheus.NewDesc("downbeat_scheduler_demand_gpus", "GPUs that the arrival rates need.", []string{"subcluster"}, nil)
	descWanted  = prometheus.NewDesc("downbeat_scheduler_wanted_gpus", "GPUs that the sub-cluster should have, for autoscalers: the demand expected in 20 s with a learned margin, divided by u*; the largest number of the last 30 s.", []string{"subcluster", "pool"}, nil)
	descModels  = prometheus.NewDesc("downbeat_scheduler_models", "Models that the sub-cluster serves; 0: its GPUs are not used.", []string{"subcluster"}, nil)
	descSteps   = prometheus.NewDesc("downbeat_spare_steps_total", "Steps of spare work, such as training, that were started on idle GPUs.", []string{"subcluster"}, nil)
	descSpare   = prometheus.NewDesc("downbeat_spare_seconds_total", "GPU time of the steps of spare work that have ended.", []string{"subcluster"}, nil)
	descOverran = prometheus.NewDesc("downbeat_spare_overrun_total", "Steps of spare work that ended later than planned, so that the batch after them began late.", []string{"subcluster"}, nil)
	descPlan    = prometheus.NewDesc("downbeat_plan_number", "Number of the latest plan for the models of each GPU; 0: none is known.", nil, nil)
	descEpochs  = prometheus.NewDesc("downbeat_plan_epochs_total", "Epochs (cluster.epoch) whose plan was applied, was not worth its moves (kept), or could not be made (failed).", []string{"outcome"}, nil)
	descBusiest = prometheus.NewDesc("downbeat_plan_busiest_ratio", "Share of its time that the demand takes on the busiest GPU, with the models as they are placed (present) and as the latest epoch's plan places them (planned).", []string{"placement"}, nil)
	descLost    = prometheus.NewDesc("downbeat_spare_lost_total", "Steps of spare work whose end was never reported; their work gets no more steps until it is offered again.", []string{"subcluster"}, nil)
)

// Describe implements prometheus.Collector.
func (s *Scheduler) Describe(out chan<- *prometheus.Desc) {
	s.depth.Describe(out)
	for _, d := range []*prometheus.Desc{descBatch, descCount, descQueued, descEnded, descBusy, descBusySum, descDemand, descWanted, descModels,
		descSteps, descSpare, descOverran, descLost, descPlan, descEpochs, descBusiest} {
		out <- d
	}
}

// Collect implements prometheus.Collector. It reads the latest snapshot.
func (s *Scheduler) Collect(out chan<- prometheus.Metric) {
	s.depth.Collect(out)
	now := s.Latest()

	for _, m := range now.Models {
		out <- sizeHistogram(m)
		out <- prometheus.MustNewConstMetric(descCount, prometheus.CounterValue, float64(m.Served), m.Name, m.Version)
		out <- prometheus.MustNewConstMetric(descQueued, prometheus.GaugeValue, float64(m.Queued), m.Name, m.Version)
		for r, n := range m.Outcomes {
			if n > 0 {
				out <- prometheus.MustNewConstMetric(descEnded, prometheus.CounterValue, float64(n), model.Reason(r).String(), m.Name, m.Version)
			}
		}
	}

	collectEpochs(out, now.Plan, &now.Epochs)

	for _, g := range now.GPUs {
		out <- prometheus.MustNewConstMetric(descBusy, prometheus.GaugeValue, now.Busy[g.ID], g.Name, g.SubCluster)
		out <- prometheus.MustNewConstMetric(descBusySum, prometheus.CounterValue, float64(g.Busy)/1e9, g.Name, g.SubCluster)
	}

	for _, l := range now.Load {
		out <- prometheus.MustNewConstMetric(descDemand, prometheus.GaugeValue, l.Demand, l.SubCluster)
		if l.Advice.GPUs > 0 {
			out <- prometheus.MustNewConstMetric(descWanted, prometheus.GaugeValue, float64(l.Advice.GPUs), l.SubCluster, l.Pool)
		}
		out <- prometheus.MustNewConstMetric(descModels, prometheus.GaugeValue, float64(l.Models), l.SubCluster)
		out <- prometheus.MustNewConstMetric(descSteps, prometheus.CounterValue, float64(l.Spare.Steps), l.SubCluster)
		out <- prometheus.MustNewConstMetric(descSpare, prometheus.CounterValue, float64(l.Spare.Time)/1e9, l.SubCluster)
		out <- prometheus.MustNewConstMetric(descOverran, prometheus.CounterValue, float64(l.Spare.Overrun), l.SubCluster)
		out <- prometheus.MustNewConstMetric(descLost, prometheus.CounterValue, float64(l.Spare.Lost), l.SubCluster)
	}
}

// collectEpochs emits the metrics of plans.
func collectEpochs(out chan<- prometheus.Metric, number uint64, x *engine.EpochStats) {
	// Emit all outcomes from the start, so that rates over them begin at 0.
	out <- prometheus.MustNewConstMetric(descPlan, prometheus.GaugeValue, float64(number))
	for outcome, n := range map[string]uint64{"applied": x.Applied, "kept": x.Kept, "failed": x.Failed} {
		out <- prometheus.MustNewConstMetric(descEpochs, prometheus.CounterValue, float64(n), outcome)
	}
	out <- prometheus.MustNewConstMetric(descBusiest, prometheus.GaugeValue, x.Latest.Before, "present")
	out <- prometheus.MustNewConstMetric(descBusiest, prometheus.GaugeValue, x.Latest.After, "planned")
}

// sizeHistogram counts a model's batch sizes in buckets of powers of two.
func sizeHistogram(m engine.ModelStats) prometheus.Metric {
	buckets := map[float64]uint64{}
	var count uint64
	sum := 0.0

	// Prometheus's buckets are cumulative, so the count carries over.
	for bound, b := 1, 0; bound <= 1024; bound *= 2 {
		for ; b <= bound && b < len(m.Sizes); b++ {
			count += m.Sizes[b]
			sum += float64(b) * float64(m.Sizes[b])
		}
		buckets[float64(bound)] = count
	}

	// Larger batches appear only in the sum and the count.
	for b := 1025; b < len(m.Sizes); b++ {
		count += m.Sizes[b]
		sum += float64(b) * float64(m.Sizes[b])
	}
	return prometheus.MustNewConstHistogram(descBatch, count, sum, buckets, m.Name, m.Version)
}
