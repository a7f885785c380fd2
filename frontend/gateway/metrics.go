package gateway

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/oip"
)

// metrics counts the outcomes of the gateway's requests. Names follow Prometheus's conventions; docs/METRICS.md gives
// Triton's names of them.
type metrics struct {
	success  *prometheus.CounterVec
	failure  *prometheus.CounterVec
	good     *prometheus.CounterVec
	slo      *prometheus.CounterVec
	bad      *prometheus.CounterVec
	duration *prometheus.HistogramVec
	exec     *prometheus.HistogramVec
	slack    *prometheus.HistogramVec

	client *frontend.Client
	beside Applications // nil: none
	mu     sync.RWMutex
	models map[modelKey]*modelMetrics // guarded by mu; bounded because only announced models are kept: see prune
}

type modelKey struct{ name, version string }

// modelMetrics are one model's metrics, resolved once.
type modelMetrics struct {
	success, good         prometheus.Counter
	sloMet, sloMissed     prometheus.Counter
	duration, exec, slack prometheus.Observer
	model                 modelKey
	series                series
	elsewhere             elsewhere              // guarded by Gateway.looking
	others                atomic.Pointer[series] // requests from other frontends by second; nil: none so far

	mu   sync.Mutex // guards the sums
	sums sums
}

// sums are the values that Triton's statistics extension reports.
type sums struct {
	successes, failures     uint64
	successNS, failureNS    uint64
	execNS, queueNS, lastMS uint64
	inputNS, outputNS       uint64
	outcomes                [model.ReasonCount]uint64 // of the failures, those that a scheduler may also have counted
}

var (
	durationBuckets = prometheus.ExponentialBuckets(0.00025, 1.5, 24) // 250 µs … 2.8 s
	execBuckets     = prometheus.ExponentialBuckets(0.0001, 1.6, 20)
	slackBuckets    = []float64{-0.1, -0.05, -0.02, -0.01, -0.005, -0.002, -0.001, 0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1}
)

func newMetrics(client *frontend.Client, beside Applications) *metrics {
	labels := []string{"model", "version"}
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "downbeat_inference_" + name, Help: help}, append(more, labels...))
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "downbeat_inference_" + name, Help: help, Buckets: buckets}, labels)
	}

	return &metrics{
		client:   client,
		beside:   beside,
		models:   map[modelKey]*modelMetrics{},
		success:  counter("request_success_total", "Requests answered with an output, late ones too."),
		failure:  counter("request_failure_total", "Requests without an output, and calls refused before they became requests.", "reason"),
		good:     counter("good_total", "Requests answered within their deadline; its rate is the goodput."),
		slo:      counter("slo_total", "Requests whose output came within the model's SLO of their arrival (met) or not (missed); good counts by each request's own deadline instead.", "result"),
		bad:      counter("bad_total", "Requests dropped, rejected, failed or late.", "reason"),
		duration: histogram("request_duration_seconds", "Time from the first byte of a REST call, or a gRPC call's headers, to the output.", durationBuckets),
		exec:     histogram("compute_infer_duration_seconds", "Time that the request's batch took on the GPU.", execBuckets),
		slack:    histogram("deadline_slack_seconds", "Time from the output to the deadline; negative: late.", slackBuckets),
	}
}

// collectors returns the metrics for registration.
func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.success, m.failure, m.good, m.bad, m.slo, m.duration, m.exec, m.slack,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "downbeat_inference_pending_requests", Help: "Requests in flight in this gateway."},
			func() float64 { return float64(m.client.Stats().Live) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "downbeat_scheduler_connected", Help: "1 while the scheduler is connected."},
			func() float64 {
				if m.client.Connected() {
					return 1
				}
				return 0
			})}
}

func (m *metrics) metricsOf(name, version string) *modelMetrics {
	key := modelKey{name, version}

	// Every request passes here: calls of known models share the lock.
	m.mu.RLock()
	mm := m.models[key]
	m.mu.RUnlock()
	if mm != nil {
		return mm
	}

	m.mu.Lock()
	defer m.mu.Unlock()

	// Another call may have created it between the locks.
	if mm = m.models[key]; mm == nil {
		m.pruneForgotten()
		m.bad.WithLabelValues(lateReason, name, version) // so that the bad rate starts at 0, and is not missing
		mm = &modelMetrics{model: key, success: m.success.WithLabelValues(name, version), good: m.good.WithLabelValues(name, version),
			sloMet: m.slo.WithLabelValues("met", name, version), sloMissed: m.slo.WithLabelValues("missed", name, version),
			duration: m.duration.WithLabelValues(name, version), exec: m.exec.WithLabelValues(name, version), slack: m.slack.WithLabelValues(name, version)}
		m.models[key] = mm
	}
	return mm
}

// isAnnounced reports whether a model or an application is announced.
func (m *metrics) isAnnounced(name, version string) bool {
	return m.client.Model(name, version) != nil || m.beside != nil && m.beside.Model(name, version) != nil
}

// pruneForgotten removes the models that the scheduler has forgotten, before another model is counted. mu is held.
func (m *metrics) pruneForgotten() {
	if !m.client.Connected() {
		return // without a scheduler, announced models may come back
	}
	for key := range m.models {
		if m.isAnnounced(key.name, key.version) {
			continue
		}

		// A series that stayed would report its last value until the process ends.
		delete(m.models, key)
		of := prometheus.Labels{"model": key.name, "version": key.version}
		for _, v := range []*prometheus.CounterVec{m.success, m.failure, m.good, m.bad, m.slo} {
			v.DeletePartialMatch(of)
		}
		for _, v := range []*prometheus.HistogramVec{m.duration, m.exec, m.slack} {
			v.DeletePartialMatch(of)
		}
	}
}

// lateReason labels outputs that arrived after the deadline.
const lateReason = "late"

// countEnd counts rows requests that began at the same time and ended with a result or an error.
func (m *metrics) countEnd(model *frontend.Model, rows int, began time.Time, r *frontend.Result, err error) {
	mm := m.metricsOf(model.Name, model.Version)
	now := time.Now()

	elapsed := now.Sub(began)

	// Without an output there is nothing to measure: only the outcome counts.
	if err != nil {
		reason := faultOf(err).reason
		m.failure.WithLabelValues(reason, model.Name, model.Version).Add(float64(rows))
		m.bad.WithLabelValues(reason, model.Name, model.Version).Add(float64(rows))
		mm.sloMissed.Add(float64(rows))
		mm.series.addEnds(now, rows, 0, reason)
		mm.mu.Lock()
		mm.sums.failures += uint64(rows)
		mm.sums.failureNS += uint64(rows) * uint64(elapsed)
		mm.sums.countOutcome(err, rows)
		mm.mu.Unlock()
		return
	}

	mm.success.Inc()
	mm.duration.Observe(elapsed.Seconds())
	mm.exec.Observe(r.Exec.Seconds())
	mm.slack.Observe(r.Slack.Seconds())

	// The SLO metric uses the model's SLO, from the arrival here; good uses the request's own deadline.
	if elapsed <= model.Deadline() {
		mm.sloMet.Inc()
	} else {
		mm.sloMissed.Inc()
	}

	reason := ""
	if r.Slack >= 0 {
		mm.good.Inc()
	} else {
		reason = lateReason
		m.bad.WithLabelValues(lateReason, model.Name, model.Version).Inc()
	}

	mm.series.addEnds(now, 1, elapsed, reason)
	mm.mu.Lock()
	mm.sums.successes++
	mm.sums.successNS += uint64(elapsed)
	mm.sums.execNS += uint64(r.Exec)
	mm.sums.inputNS += uint64(r.Stages.Fetch)
	mm.sums.outputNS += uint64(r.Stages.Reply)

	// Time outside the stages was waiting.
	mm.sums.queueNS += uint64(max(0, elapsed-r.Exec-r.Stages.Fetch-r.Stages.Reply))
	mm.sums.lastMS = uint64(now.UnixMilli())
	mm.mu.Unlock()
}

// countFault counts a call that never became a request. Unknown model names do not become labels.
func (m *metrics) countFault(name string, f *fault) {
	if f.counted {
		return
	}

	// Names that anyone can invent would grow the registry without bound. A message may be refused before its model is
	// looked up.
	switch f.reason {
	case "unknown_model", noScheduler, "forbidden", "unauthenticated":
		name = ""
	default:
		if !m.isAnnounced(name, "") {
			name = ""
		}
	}
	m.failure.WithLabelValues(f.reason, strings.Clone(name), "").Inc() // name may lie in a call's buffer
}

// reportStatistics reports a model as Triton's statistics extension does.
func (m *metrics) reportStatistics(model *frontend.Model) *oip.ModelStatistics {
	mm := m.metricsOf(model.Name, model.Version)
	mm.mu.Lock()
	s := mm.sums
	mm.mu.Unlock()

	duration := func(count, ns uint64) *oip.StatisticDuration { return &oip.StatisticDuration{Count: count, Ns: ns} }
	return &oip.ModelStatistics{Name: model.Name, Version: model.Version, LastInference: s.lastMS, InferenceCount: s.successes,
		InferenceStats: &oip.InferStatistics{
			Success: duration(s.successes, s.successNS), Fail: duration(s.failures, s.failureNS), Queue: duration(s.successes, s.queueNS),
			ComputeInput: duration(s.successes, s.inputNS), ComputeInfer: duration(s.successes, s.execNS), ComputeOutput: duration(s.successes, s.outputNS),
			CacheHit: duration(0, 0), CacheMiss: duration(0, 0)}}
}
