//go:build linux

package downbeat

import (
	"time"

	dag "downbeat.dev/core/app"
	"downbeat.dev/frontend/app"

	"github.com/prometheus/client_golang/prometheus"
)

// reviewEvery is the interval between comparisons of promises with the available GPUs.
const reviewEvery = 250 * time.Millisecond

// admission returns the admission of all applications' sessions and reviews it until Close. It is nil if the
// scheduler runs in another process, whose GPUs are not known here.
func (s *System) admission() *app.Admission {
	if s.process.Scheduler() == nil {
		return nil
	}
	a := app.NewAdmission(s.capacity, s.config.SessionTrial)

	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for tick := time.NewTicker(reviewEvery); ; {
			select {
			case <-stop:
				tick.Stop()
				return
			case now := <-tick.C:
				for _, evicted := range a.Review(now) {
					s.log.Warn("a session is evicted", "session", evicted.Session().Name, "why", evicted.Standing().Evicted)
				}
			}
		}
	}()
	s.onClose(func() error { close(stop); <-ended; return nil })
	return a
}

// capacity returns the GPUs that can serve sessions now. GPUs held back as sick do not count. The GPUs of the
// SessionSpare largest backends are a reserve, as long as there are other backends.
func (s *System) capacity() dag.Capacity {
	stats := s.process.Scheduler().Fresh()
	c := dag.Capacity{Hop: applicationHop}
	for _, l := range stats.Load {
		c.Measured += l.Demand
	}

	of := map[string]int{}
	for _, g := range stats.GPUs {
		if !g.Held {
			c.GPUs++
			of[g.Backend]++
		}
	}

	for range min(s.config.Cluster.SessionSpare, len(of)-1) {
		most := ""
		for name, n := range of {
			if most == "" || n > of[most] {
				most = name
			}
		}
		c.Spare += of[most]
		delete(of, most)
	}
	return c
}

// sessionMetrics exports counts of the sessions of all applications.
type sessionMetrics struct{ of *app.Set }

var (
	sessionsOpen    = sessionMetric("downbeat_sessions_open", "Open sessions.")
	sessionsHurt    = sessionMetric("downbeat_sessions_hurt", "Open sessions whose promise is broken: fewer than 99 % of the latest 200 frames were in time.")
	sessionsHurtAll = sessionMetric("downbeat_sessions_hurt_total", "Number of times that a session's promise was broken.")
	sessionsEvicted = sessionMetric("downbeat_sessions_evicted_total", "Sessions closed because GPUs were lost.")
)

func sessionMetric(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"application"}, nil)
}

// Describe implements prometheus.Collector.
func (m sessionMetrics) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m sessionMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, a := range m.of.Status().Applications {
		hurt := 0
		for _, s := range a.Sessions {
			if s.Hurt {
				hurt++
			}
		}

		ch <- prometheus.MustNewConstMetric(sessionsOpen, prometheus.GaugeValue, float64(len(a.Sessions)), a.Name)
		ch <- prometheus.MustNewConstMetric(sessionsHurt, prometheus.GaugeValue, float64(hurt), a.Name)
		ch <- prometheus.MustNewConstMetric(sessionsHurtAll, prometheus.CounterValue, float64(a.Hurt), a.Name)
		ch <- prometheus.MustNewConstMetric(sessionsEvicted, prometheus.CounterValue, float64(a.Evicted), a.Name)
	}
}
