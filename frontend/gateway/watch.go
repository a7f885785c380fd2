package gateway

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/model"
	"downbeat.dev/frontend/gateway/oip"
	"downbeat.dev/frontend/gateway/page"
)

// Scheduler tells what the scheduler counts and why it decides as it does, where it runs in the same process.
type Scheduler interface {
	Stats() engine.Stats
	Explain() (engine.Explanation, error)
}

// watchEvery is how often the scheduler is looked at.
const watchEvery = 250 * time.Millisecond

// timeline is how far back the page shows batches.
const timeline = time.Second

// batchesMax bounds what the page draws.
const batchesMax = 4000

// watch looks at the scheduler for the metrics and the page.
type watch struct {
	scheduler Scheduler
	depth     *prometheus.HistogramVec

	mu     sync.Mutex // guards what follows
	last   engine.Stats
	before []engine.GPUStats // of the look before, for busy fractions
	busy   map[uint32]float64
	at     time.Duration // of the scheduler's clock, when busy was measured
}

func newWatch(s Scheduler, registry *prometheus.Registry) *watch {
	w := &watch{scheduler: s, busy: map[uint32]float64{},
		depth: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "downbeat_inference_queue_depth",
			Help: "Requests queued per model, looked at four times a second.", Buckets: prometheus.ExponentialBuckets(1, 2, 16)}, []string{"model", "version"})}
	registry.MustRegister(w.depth, w)
	w.lookOnce()
	return w
}

// runLooks looks until closing is closed.
func (w *watch) runLooks(closing <-chan struct{}) {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		select {
		case <-closing:
			return
		case <-t.C:
			w.lookOnce()
		}
	}
}

func (w *watch) lookOnce() {
	s := w.scheduler.Stats()
	for _, m := range s.Models {
		w.depth.WithLabelValues(m.Name, m.Version).Observe(float64(m.Queued))
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	w.forgetSeries(s)
	w.last = s

	// Over one look a single long batch would make a GPU look busy: the fraction is of a second.
	if passed := time.Duration(s.Now) - w.at; passed >= time.Second || w.at == 0 {
		w.measureBusy(s, passed)
	}
}

// forgetSeries ends the series of models that the scheduler knew at the look before and knows no more. The lock is held.
func (w *watch) forgetSeries(now engine.Stats) {
	type version struct{ name, version string }
	known := make(map[version]bool, len(now.Models))
	for _, m := range now.Models {
		known[version{m.Name, m.Version}] = true
	}

	// A histogram that stayed would be told for ever.
	for _, m := range w.last.Models {
		if !known[version{m.Name, m.Version}] {
			w.depth.DeleteLabelValues(m.Name, m.Version)
		}
	}
}

// measureBusy sets each GPU's busy fraction since the last time. The lock is held.
func (w *watch) measureBusy(s engine.Stats, passed time.Duration) {
	before := map[uint32]int64{}
	for _, g := range w.before {
		before[g.ID] = g.Busy
	}
	clear(w.busy)
	for _, g := range s.GPUs {
		// A GPU that has just come has no time before to compare with.
		if b, ok := before[g.ID]; ok && passed > 0 {
			w.busy[g.ID] = min(1, max(0, float64(g.Busy-b)/float64(passed)))
		}
	}
	w.before, w.at = s.GPUs, time.Duration(s.Now)
}

// The scheduler's metrics, made when they are asked for.
var (
	modelLabels = []string{"model", "version"}
	descBatch   = prometheus.NewDesc("downbeat_inference_batch_size", "Requests per batch sent.", modelLabels, nil)
	descCount   = prometheus.NewDesc("downbeat_scheduler_served_total", "Requests served, as the scheduler counts.", modelLabels, nil)
	descQueued  = prometheus.NewDesc("downbeat_inference_queued_requests", "Requests queued now.", modelLabels, nil)
	descEnded   = prometheus.NewDesc("downbeat_scheduler_unserved_total", "Requests that ended without an output, as the scheduler counts.", append([]string{"reason"}, modelLabels...), nil)
	descBusy    = prometheus.NewDesc("downbeat_backend_busy_ratio", "Part of the last second that the GPU spent on batches.", []string{"gpu", "subcluster"}, nil)
	descBusySum = prometheus.NewDesc("downbeat_backend_busy_seconds_total", "Time that the GPU spent on batches.", []string{"gpu", "subcluster"}, nil)
	descDemand  = prometheus.NewDesc("downbeat_scheduler_demand_gpus", "GPUs that the arrival rates need.", []string{"subcluster"}, nil)
	descModels  = prometheus.NewDesc("downbeat_scheduler_models", "Models that the sub-cluster serves; 0: its GPUs are of no use.", []string{"subcluster"}, nil)
)

// Describe implements prometheus.Collector.
func (w *watch) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descBatch, descCount, descQueued, descEnded, descBusy, descBusySum, descDemand, descModels} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (w *watch) Collect(out chan<- prometheus.Metric) {
	w.mu.Lock()
	s := w.last
	busy := make(map[uint32]float64, len(w.busy))
	for id, f := range w.busy {
		busy[id] = f
	}
	w.mu.Unlock()

	// Sending waits for the registry, so that the lock is not held here.
	for _, m := range s.Models {
		out <- sizeHistogram(m)
		out <- prometheus.MustNewConstMetric(descCount, prometheus.CounterValue, float64(m.Served), m.Name, m.Version)
		out <- prometheus.MustNewConstMetric(descQueued, prometheus.GaugeValue, float64(m.Queued), m.Name, m.Version)
		for r, n := range m.Outcomes {
			if n > 0 {
				out <- prometheus.MustNewConstMetric(descEnded, prometheus.CounterValue, float64(n), model.Reason(r).String(), m.Name, m.Version)
			}
		}
	}

	for _, g := range s.GPUs {
		out <- prometheus.MustNewConstMetric(descBusy, prometheus.GaugeValue, busy[g.ID], g.Name, g.SubCluster)
		out <- prometheus.MustNewConstMetric(descBusySum, prometheus.CounterValue, float64(g.Busy)/1e9, g.Name, g.SubCluster)
	}

	for _, l := range s.Load {
		out <- prometheus.MustNewConstMetric(descDemand, prometheus.GaugeValue, l.Demand, l.SubCluster)
		out <- prometheus.MustNewConstMetric(descModels, prometheus.GaugeValue, float64(l.Models), l.SubCluster)
	}
}

// sizeHistogram puts a model's batch sizes in buckets of powers of two.
func sizeHistogram(m engine.ModelStats) prometheus.Metric {
	buckets := map[float64]uint64{}
	var count uint64
	sum := 0.0

	// Prometheus's buckets are cumulative: the count goes on from one to the next.
	for bound, b := 1, 0; bound <= 1024; bound *= 2 {
		for ; b <= bound && b < len(m.Sizes); b++ {
			count += m.Sizes[b]
			sum += float64(b) * float64(m.Sizes[b])
		}
		buckets[float64(bound)] = count
	}

	// Larger batches are in the sum and the count alone.
	for b := 1025; b < len(m.Sizes); b++ {
		count += m.Sizes[b]
		sum += float64(b) * float64(m.Sizes[b])
	}
	return prometheus.MustNewConstHistogram(descBatch, count, sum, buckets, m.Name, m.Version)
}

// fillBatches fills in what Triton's statistics tell of batches.
func (w *watch) fillBatches(s *oip.ModelStatistics, model uint32) {
	for _, m := range w.scheduler.Stats().Models {
		if m.ID != model || m.Name != s.Name {
			continue
		}
		s.ExecutionCount = m.Batches
		for size, ran := range m.Ran {
			if ran.Batches > 0 {
				// Inputs are fetched and outputs sent beside the batches; there is no time of their own to tell.
				beside := &oip.StatisticDuration{Count: ran.Batches}
				s.BatchStats = append(s.BatchStats, &oip.InferBatchStatistics{BatchSize: uint64(size), ComputeInput: beside,
					ComputeInfer: &oip.StatisticDuration{Count: ran.Batches, Ns: uint64(ran.Exec)}, ComputeOutput: beside})
			}
		}
	}
}

// fillPage fills in what the page shows of the scheduler.
func (w *watch) fillPage(d *page.Data) {
	now := w.scheduler.Stats()
	w.mu.Lock()
	defer w.mu.Unlock()
	d.Scheduler = true
	d.Window = float64(timeline.Milliseconds())

	for _, g := range now.GPUs {
		d.GPUs = append(d.GPUs, page.GPU{ID: g.ID, Name: g.Name, Busy: w.busy[g.ID]})
	}

	for i := range d.Models {
		m := &d.Models[i]
		for _, s := range now.Models {
			if s.ID == m.ID && s.Name == m.Name {
				m.Sizes, m.Queued = s.Sizes, s.Queued
			}
		}
	}

	ago := func(t int64) time.Duration { return time.Duration(int64(now.Now) - t) }
	ms := func(t int64) float64 { return float64(ago(t).Microseconds()) / 1000 }
	recent := now.Recent
	for i := max(0, len(recent)-batchesMax); i < len(recent); i++ {
		if r := recent[i]; ago(int64(r.End)) < timeline {
			d.Batches = append(d.Batches, page.Batch{GPU: r.GPU, Model: r.Model, Size: r.Size, Start: ms(int64(r.Start)), End: ms(int64(r.End))})
		}
	}
}

// pageSeconds is the length of the page's series.
const pageSeconds = 120

// pageData is what the page shows now.
func (g *Gateway) pageData() page.Data {
	d := page.Data{Version: g.o.Version, Connected: g.client.Connected(), Ready: g.isReady(), Live: g.client.Stats().Live, Seconds: pageSeconds,
		Models: []page.Model{}, GPUs: []page.GPU{}, Batches: []page.Batch{}}

	now := time.Now()
	for _, m := range g.listModels() {
		p := page.Model{Name: m.Name, Version: m.Version, ID: m.ID, Ready: m.Ready, SLO: float64(m.SLO) / 1e6, Reasons: map[string]uint32{}}
		cells := g.metrics.metricsOf(m.Name, m.Version).series.lastSeconds(now, pageSeconds)

		var lately [latencyBuckets]uint32
		for i := range cells {
			c := &cells[i]
			bad := uint32(0)
			for reason, n := range c.bad {
				bad += n
				p.Reasons[reason] += n
			}
			p.Good, p.Bad = append(p.Good, c.good), append(p.Bad, bad)
			p.P99 = append(p.P99, float64(quantileOf(&c.latencies, 0.99).Microseconds())/1e3)

			// The median is of the last ten seconds.
			if i >= pageSeconds-10 {
				for b, n := range c.latencies {
					lately[b] += n
				}
			}
		}

		p.P50 = float64(quantileOf(&lately, 0.5).Microseconds()) / 1e3
		d.Models = append(d.Models, p)
	}

	if g.watch != nil {
		g.watch.fillPage(&d)
	}
	return d
}
