package clients

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	descRequests = prometheus.NewDesc("downbeat_client_requests_total",
		"Requests of a client in client_tokens_file: admitted, or refused because of rate, in_flight or (calls) model.", []string{"client", "result"}, nil)
	descInFlight = prometheus.NewDesc("downbeat_client_in_flight_requests", "Requests of a client in flight.", []string{"client"}, nil)
	descUnknown  = prometheus.NewDesc("downbeat_client_unknown_total", "Calls without the token of a client.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Set) Describe(out chan<- *prometheus.Desc) {
	out <- descRequests
	out <- descInFlight
	out <- descUnknown
}

// Collect implements prometheus.Collector. Only clients in the file have series, so their number is bounded.
func (s *Set) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.MustNewConstMetric(descUnknown, prometheus.CounterValue, float64(s.unknown.Load()))
	for _, c := range s.table.Load().inOrder {
		u := c.usage
		for result, n := range map[string]*atomic.Uint64{"admitted": &u.admitted, "rate": &u.overRate, "in_flight": &u.overInFlight, "model": &u.otherModel} {
			out <- prometheus.MustNewConstMetric(descRequests, prometheus.CounterValue, float64(n.Load()), c.Name, result)
		}

		u.mu.Lock()
		inFlight := u.inFlight
		u.mu.Unlock()
		out <- prometheus.MustNewConstMetric(descInFlight, prometheus.GaugeValue, float64(inFlight), c.Name)
	}
}
