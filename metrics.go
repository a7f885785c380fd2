//go:build linux

package downbeat

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"downbeat.dev/core/control"
	"downbeat.dev/core/engine"
	"downbeat.dev/core/observe"
	"downbeat.dev/rdma"

	"github.com/prometheus/client_golang/prometheus"
)

// openMetrics serves this process's health, metrics and profiles on an address of their own, if one is configured. It
// opens before the parts, so a probe can tell a slow start or shutdown from a dead process.
func (s *System) openMetrics() error {
	addr := s.config.Metrics
	if addr == "" {
		return nil
	}

	if err := s.config.CheckListener("metrics", addr); err != nil {
		return err
	}

	t, err := s.config.PublicTLS()
	if err != nil {
		return err
	}
	ln, err := control.Listen(addr)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}

	// The address may have named port 0: store the actual one.
	s.config.Metrics = ln.Addr().String()
	s.log.Info("metrics, health and profiles", "address", s.config.Metrics)
	ln = loggedListener{observe.Bound(ln), s.log}
	if t != nil {
		ln = tls.NewListener(ln, t)
	}

	// The address answers "not ready" until the parts are open; a probe must not find a closed port.
	server := observe.NewServer(s.process.Handler(s.token))
	go func() {
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.fail(fmt.Errorf("metrics: %w", err))
		}
	}()

	s.onClose(server.Close)
	return nil
}

// setHealth takes readiness from the outermost open part. A gateway sets its own.
func (s *System) setHealth() {
	var ready func() bool
	switch {
	case s.gateway != nil:
		return
	case s.backend != nil:
		ready = s.backend.Ready
	case s.engine != nil:
		// A scheduler is ready at once: its backends connect only after that.
		ready = func() bool { return true }
	default:
		ready = s.client.Ready
	}
	s.process.SetHealth(observe.Health{Ready: ready, Serving: ready})
}

// watchScheduler observes this process's engine if there are readers: a gateway's callers or those of the metrics
// address.
func (s *System) watchScheduler(e *engine.Engine) {
	if s.config.Roles&Gateway == 0 && s.config.Metrics == "" {
		return
	}
	watch := observe.Watch(e)
	s.onClose(watch.Close)
	s.process.SetScheduler(watch)
}

// leadMetrics export whether this scheduler leads, and its epoch.
func (s *System) leadMetrics() []prometheus.Collector {
	gauge := func(name, help string, value func(epoch uint64, leads bool) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(s.server.Leads()) })
	}
	return []prometheus.Collector{
		gauge("downbeat_scheduler_leads", "1 while this scheduler leads, 0 while it stands by.", func(_ uint64, leads bool) float64 {
			if leads {
				return 1
			}
			return 0
		}),
		gauge("downbeat_scheduler_epoch", "How often the cluster has changed its leader; 0 without an election.", func(epoch uint64, _ bool) float64 { return float64(epoch) }),
		linkMetrics{s.server},
	}
}

// linkMetrics export the kernel's view of the scheduler's links with other hosts.
type linkMetrics struct{ server *control.Server }

var (
	linkLabel     = []string{"peers"}
	descLinks     = prometheus.NewDesc("downbeat_link_open", "TCP links with the scheduler's frontend, backend and standby peers.", linkLabel, nil)
	descStalled   = prometheus.NewDesc("downbeat_link_stalled", "Links on which a retransmission is still not acknowledged: the network or the host at the other end stopped answering 0.2 to 0.3 s ago or earlier.", linkLabel, nil)
	descRoundTrip = prometheus.NewDesc("downbeat_link_round_trip_seconds", "The longest round trip of the links, as smoothed by the kernel.", linkLabel, nil)
	descResent    = prometheus.NewDesc("downbeat_link_retransmissions_total", "TCP segments that were sent again.", linkLabel, nil)
)

// Describe implements prometheus.Collector.
func (l linkMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descLinks, descStalled, descRoundTrip, descResent} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (l linkMetrics) Collect(out chan<- prometheus.Metric) {
	for _, k := range l.server.LinkStats() {
		out <- prometheus.MustNewConstMetric(descLinks, prometheus.GaugeValue, float64(k.Links), k.Peers)
		out <- prometheus.MustNewConstMetric(descStalled, prometheus.GaugeValue, float64(k.Stalled), k.Peers)
		out <- prometheus.MustNewConstMetric(descRoundTrip, prometheus.GaugeValue, k.RoundTrip.Seconds(), k.Peers)
		out <- prometheus.MustNewConstMetric(descResent, prometheus.CounterValue, float64(k.Retransmitted), k.Peers)
	}
}

// dataLinkMetrics export the kernel's view of the data plane links with peers of one kind.
type dataLinkMetrics struct {
	peers string
	look  func() rdma.LinkStats
}

var (
	descDataLinks     = prometheus.NewDesc("downbeat_data_link_open", "Links of the data plane over TCP: of a backend with each frontend, of a gateway with each backend.", linkLabel, nil)
	descDataStalled   = prometheus.NewDesc("downbeat_data_link_stalled", "Links of the data plane on which a retransmission is still not acknowledged.", linkLabel, nil)
	descDataRoundTrip = prometheus.NewDesc("downbeat_data_link_round_trip_seconds", "The longest round trip of the data plane's links, as smoothed by the kernel.", linkLabel, nil)
	descDataResent    = prometheus.NewDesc("downbeat_data_link_retransmissions_total", "TCP segments of the data plane that were sent again.", linkLabel, nil)
)

// clientLinks returns the kernel's view of the client's links with backends.
func (s *System) clientLinks() rdma.LinkStats {
	d := s.client.Stats().Data
	return rdma.LinkStats{Open: d.Links, Stalled: d.LinksStalled, RoundTrip: d.RoundTrip, Retransmitted: d.Retransmitted}
}

// Describe implements prometheus.Collector. It describes nothing: a process may have one collector per kind of peers,
// and their metrics have the same names.
func (dataLinkMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (d dataLinkMetrics) Collect(out chan<- prometheus.Metric) {
	links := d.look()
	out <- prometheus.MustNewConstMetric(descDataLinks, prometheus.GaugeValue, float64(links.Open), d.peers)
	out <- prometheus.MustNewConstMetric(descDataStalled, prometheus.GaugeValue, float64(links.Stalled), d.peers)
	out <- prometheus.MustNewConstMetric(descDataRoundTrip, prometheus.GaugeValue, links.RoundTrip.Seconds(), d.peers)
	out <- prometheus.MustNewConstMetric(descDataResent, prometheus.CounterValue, float64(links.Retransmitted), d.peers)
}

// loggedListener logs failures of Accept, such as running out of descriptors. The servers of net/http and grpc retry
// silently.
type loggedListener struct {
	net.Listener
	log *slog.Logger
}

// Accept implements net.Listener.
func (l loggedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		l.log.Error("no connection can be accepted", "address", l.Addr().String(), "err", err)
	}
	return conn, err
}
