package gateway

import (
	"time"

	"downbeat.dev/core/observe"
	"downbeat.dev/frontend/gateway/page"
)

// timeline is the period for which the page shows batches.
const timeline = time.Second

// batchesMax bounds the number of batches that the page draws.
const batchesMax = 4000

// fillPage adds the scheduler's part of the page.
func fillPage(d *page.Data, now *observe.Snapshot) {
	d.Scheduler = true
	d.Window = float64(timeline.Milliseconds())

	for _, g := range now.GPUs {
		d.GPUs = append(d.GPUs, page.GPU{ID: g.ID, Name: g.Name, Busy: now.Busy[g.ID]})
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

	// Steps of spare work appear as batches without a model and a size.
	for _, steps := range []bool{false, true} {
		recent, list := now.Recent, &d.Batches
		if steps {
			recent, list = now.Steps, &d.Steps
		}
		for _, r := range recent[max(0, len(recent)-batchesMax):] {
			if ago(int64(r.End)) < timeline {
				*list = append(*list, page.Batch{GPU: r.GPU, Model: r.Model, Size: r.Size, Start: ms(int64(r.Start)), End: ms(int64(r.End))})
			}
		}
	}
}

// addOthers adds requests from other frontends.
func addOthers(p *page.Model, cells []cell) {
	for i := range cells {
		p.Good[i] += cells[i].good
		for reason, n := range cells[i].bad {
			p.Bad[i] += n
			p.Reasons[reason] += n
		}
	}
}

// pageSeconds is the length of the page's series.
const pageSeconds = 120

// pageData returns the current data of the page.
func (g *Gateway) pageData() page.Data {
	d := page.Data{Version: g.o.Version, Connected: g.client.Connected(), Ready: g.isReady(), Live: g.client.Stats().Live, Seconds: pageSeconds,
		Models: []page.Model{}, GPUs: []page.GPU{}, Batches: []page.Batch{}, Steps: []page.Batch{}}

	now := time.Now()
	g.countElsewhere(now)
	for _, m := range g.listModels() {
		p := page.Model{Name: m.Name, Version: m.Version, ID: m.ID, Ready: m.Ready, SLO: float64(m.SLO) / 1e6, Reasons: map[string]uint32{}}
		mm := g.metrics.metricsOf(m.Name, m.Version)
		cells := mm.series.lastSeconds(now, pageSeconds)

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

			// The median covers the last ten seconds.
			if i >= pageSeconds-10 {
				for b, n := range c.latencies {
					lately[b] += n
				}
			}
		}

		if others := mm.others.Load(); others != nil {
			addOthers(&p, others.lastSeconds(now, pageSeconds))
			d.Elsewhere = true
		}
		p.P50 = float64(quantileOf(&lately, 0.5).Microseconds()) / 1e3
		d.Models = append(d.Models, p)
	}

	if s := g.process.Scheduler(); s != nil {
		fillPage(&d, s.Latest())
	}
	return d
}
