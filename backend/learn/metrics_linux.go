package learn

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// A live learner's metrics, created on each request for them.
var (
	learnerLabels = []string{"model"}
	descVersion   = prometheus.NewDesc("downbeat_learner_version", "Number of the weights that serve.", learnerLabels, nil)
	descSampled   = prometheus.NewDesc("downbeat_learner_samples_total", "Samples with a class that the learner has kept.", learnerLabels, nil)
	descTrained   = prometheus.NewDesc("downbeat_learner_steps_total", "Training steps.", learnerLabels, nil)
	descDrifts    = prometheus.NewDesc("downbeat_learner_drifts_total", "Drifts detected.", learnerLabels, nil)
	descPublished = prometheus.NewDesc("downbeat_learner_published_total", "Versions published.", learnerLabels, nil)
	descExitGap   = prometheus.NewDesc("downbeat_learner_exit_gap", "Accuracy of the serving version minus that of one of its early exits, as measured last.", append([]string{"exit"}, learnerLabels...), nil)
	descUntaught  = prometheus.NewDesc("downbeat_learner_teacher_failed_total", "Labelling steps whose inputs got no class because the teacher failed or hung; the learner asks it again after a pause.", learnerLabels, nil)
	descDiscarded = prometheus.NewDesc("downbeat_learner_discarded_total", "Discarded candidates: worse, not_finite, or unpublished because loading or saving them failed.", append([]string{"reason"}, learnerLabels...), nil)
)

// Describe implements prometheus.Collector.
func (s *Live) Describe(out chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(s, out)
}

// Collect implements prometheus.Collector. It waits for no step: the counts are those of the latest stored state.
func (s *Live) Collect(out chan<- prometheus.Metric) {
	told := s.told.Load()
	if told == nil {
		return
	}

	// Every counter has the model as its last label.
	c := told.counts
	counter := func(d *prometheus.Desc, n int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), append(labels, s.name)...)
	}
	out <- prometheus.MustNewConstMetric(descVersion, prometheus.GaugeValue, float64(told.version), s.name)

	// A model without exits has no such metric.
	for k, gap := range told.exitGaps {
		out <- prometheus.MustNewConstMetric(descExitGap, prometheus.GaugeValue, gap, strconv.Itoa(k+1), s.name)
	}

	counter(descSampled, c.Labelled)
	counter(descTrained, c.Steps)
	counter(descDrifts, c.Drifts)
	counter(descPublished, c.Published)
	counter(descUntaught, c.TeacherFailed)
	counter(descDiscarded, c.Worse, "worse")
	counter(descDiscarded, c.NotFinite, "not_finite")
	counter(descDiscarded, c.Unpublished, "unpublished")
}
