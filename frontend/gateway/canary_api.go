package gateway

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"downbeat.dev/core/guard"
)

// CanaryPath is the path that lists and starts canaries. Below it, promote, rollback and end follow a model's name.
const CanaryPath = "/v2/downbeat/canary"

const canaryBodyMax = 4 << 10

// isCanary reports whether a path concerns canaries, which only operators may use.
func isCanary(path string) bool {
	return path == CanaryPath || strings.HasPrefix(path, CanaryPath+"/")
}

func (g *Gateway) canaryRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET "+CanaryPath, func(w http.ResponseWriter, _ *http.Request) { g.writeCanaries(w) })
	mux.HandleFunc("POST "+CanaryPath, g.restCanary)

	// Each word ends the trial of a version; the function returns the rule that holds afterwards.
	for word, left := range map[string]func(Canary) *Canary{
		"promote":  func(c Canary) *Canary { return &Canary{Model: c.Model, Base: c.Version} },
		"rollback": func(c Canary) *Canary { return &Canary{Model: c.Model, Base: c.Base} },
		"end":      func(Canary) *Canary { return nil },
	} {
		mux.HandleFunc("POST "+CanaryPath+"/{model}/"+word, func(w http.ResponseWriter, r *http.Request) {
			if f := g.endTrial(r.PathValue("model"), word, left); f != nil {
				writeFault(w, f)
				return
			}
			g.writeCanaries(w)
		})
	}
}

func (g *Gateway) writeCanaries(w http.ResponseWriter) {
	guard.WriteJSON(w, http.StatusOK, map[string]any{"canaries": g.canaries.allStatus()})
}

// restCanary starts a canary, or changes the model's canary.
func (g *Gateway) restCanary(w http.ResponseWriter, r *http.Request) {
	// Refuse unknown fields: a misspelt field must not pass as an absent one.
	var c Canary
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, canaryBodyMax))
	d.DisallowUnknownFields()
	err := d.Decode(&c)
	if err == nil && d.Decode(new(any)) != io.EOF {
		err = errors.New("something follows it")
	}
	if err != nil {
		writeFault(w, invalidFault("body: want one object of model, base, version, share, shadow and tolerance: %v", err))
		return
	}
	if f := g.startCanary(c); f != nil {
		writeFault(w, f)
		return
	}
	g.writeCanaries(w)
}

// startCanary checks a rule and puts it in force.
func (g *Gateway) startCanary(c Canary) *fault {
	newest := g.client.Model(c.Model, "")
	if newest == nil {
		return notFound("canary: model %.60q: not served here", c.Model)
	}
	if c.Base == "" {
		c.Base = newest.Version // while the version on trial is not loaded yet
	}

	switch {
	case newest.IsFamily():
		return invalidFault("canary: model %q: is a family, whose variants the scheduler chooses by accuracy; want a model", c.Model)
	case newest.Sequence != nil:
		return invalidFault("canary: model %q: keeps sequences, whose steps stay with one version", c.Model)
	case c.Version == "" || len(c.Version) > versionMax || !isNumber(c.Version):
		return invalidFault("canary: version: %.20q: must be the number of the version to try", c.Version)
	case c.Base == c.Version:
		return invalidFault("canary: version: %s: must differ from the base, which is the newest version that is served unless the call names one", c.Version)
	case !(c.Share >= 0 && c.Share <= 1):
		return invalidFault("canary: share: %v: must be from 0 to 1", c.Share)
	case !(c.Shadow >= 0 && c.Shadow <= 1):
		return invalidFault("canary: shadow: %v: must be from 0 to 1", c.Shadow)
	case !(c.Tolerance >= 0):
		return invalidFault("canary: tolerance: %v: must be 0 or more", c.Tolerance)
	}

	// The version on trial may be loaded later; the base must answer now.
	base, tried := g.client.Model(c.Model, c.Base), g.client.Model(c.Model, c.Version)
	switch {
	case base == nil || !base.Ready:
		return invalidFault("canary: base: version %.20q of %q is not served; served: %v", c.Base, c.Model, g.listVersions(c.Model))
	case tried != nil && tried.Ready && !sameFaces(base, tried):
		return invalidFault("canary: version: %s: its tensors are not those of version %s, so that it cannot answer the same requests", c.Version, c.Base)
	}

	// A change of shares keeps the counts of the two versions.
	g.canaries.set(c.Model, func(before *canary) *canary {
		next := &canary{rule: c, counts: new(canaryCounts)}
		if before != nil && before.rule.Base == c.Base && before.rule.Version == c.Version {
			next.counts = before.counts
		}
		return next
	})
	g.log.Info("canary", "model", c.Model, "base", c.Base, "version", c.Version, "share", c.Share, "shadow", c.Shadow)
	return nil
}

// versionMax bounds the number of digits of a version.
const versionMax = 19

func isNumber(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return r < '0' || r > '9' }) < 0
}

// endTrial ends the trial of a model's version; left returns the rule that holds afterwards, nil for none.
func (g *Gateway) endTrial(name, word string, left func(Canary) *Canary) *fault {
	var f *fault
	g.canaries.set(name, func(before *canary) *canary {
		if before == nil {
			f = notFound("canary: model %.60q: has none", name)
			return nil
		}

		// Without a trial there is nothing to promote or roll back.
		if word != "end" && before.rule.Version == "" {
			f = invalidFault("canary: model %q: no version is being tried: version %s answers all", name, before.rule.Base)
			return before
		}

		rule := left(before.rule)
		g.log.Info("canary ends", "model", name, "by", word, "base", before.rule.Base, "version", before.rule.Version)
		if rule == nil {
			return nil
		}
		return &canary{rule: *rule, counts: new(canaryCounts)}
	})
	return f
}

// Descriptions of the canaries' Prometheus metrics.
var (
	canaryShare   = canaryDesc("share", "Share of the requests without a version that this version answers, while the model has a canary.", "version")
	canaryEnds    = canaryDesc("requests_total", "Requests whose version a canary chose: good (in time) or bad.", "version", "result")
	canarySeconds = canaryDesc("request_seconds_total", "Total time of the requests whose version a canary chose.", "version")
	canaryCopies  = canaryDesc("copies_total", "Copies of requests sent to the version on trial, by its answer: same, different, failed, skipped.", "version", "result")
	canaryMost    = canaryDesc("difference_max", "The largest difference between the numbers of two answers.", "version")
)

func canaryDesc(name, help string, more ...string) *prometheus.Desc {
	return prometheus.NewDesc("downbeat_canary_"+name, help, append([]string{"model"}, more...), nil)
}

// Describe implements prometheus.Collector.
func (c *canaries) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{canaryShare, canaryEnds, canarySeconds, canaryCopies, canaryMost} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *canaries) Collect(out chan<- prometheus.Metric) {
	for _, s := range c.allStatus() {
		tell := func(d *prometheus.Desc, of prometheus.ValueType, v float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(d, of, v, append([]string{s.Model}, labels...)...)
		}

		// Without a version on trial the base has the whole share.
		tell(canaryShare, prometheus.GaugeValue, 1-s.Share, s.Base)
		ends := map[string]CanaryEnds{s.Base: s.BaseEnds}
		if s.Version != "" {
			tell(canaryShare, prometheus.GaugeValue, s.Share, s.Version)
			ends[s.Version] = s.VersionEnds
			for result, n := range map[string]uint64{"same": s.Copies.Same, "different": s.Copies.Different, "failed": s.Copies.Failed, "skipped": s.Copies.Skipped} {
				tell(canaryCopies, prometheus.CounterValue, float64(n), s.Version, result)
			}
			tell(canaryMost, prometheus.GaugeValue, s.Copies.Difference, s.Version)
		}

		for version, e := range ends {
			tell(canaryEnds, prometheus.CounterValue, float64(e.Good), version, "good")
			tell(canaryEnds, prometheus.CounterValue, float64(e.Bad), version, "bad")
			tell(canarySeconds, prometheus.CounterValue, e.Seconds, version)
		}
	}
}
