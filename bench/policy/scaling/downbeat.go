package scaling

import (
	"context"
	"time"

	"downbeat.dev/core/sim"
)

// downbeat is core/sched with the prices of core/engine, as in the live system. Every device may run every variant
// that can meet the SLO.
type downbeat struct {
	*sim.Downbeat
	elapsed time.Duration
}

func newDownbeat(_ context.Context, w *sim.World, _ Settings) Policy {
	return &downbeat{Downbeat: sim.NewDownbeat(w)}
}

// Wake implements sim.Server. If it renews prices, all of its time counts as planning.
func (d *downbeat) Wake(now sim.Time) {
	before, begun := d.Renewals(), time.Now()

	d.Downbeat.Wake(now)
	if d.Renewals() > before {
		d.elapsed += time.Since(begun)
	}
}

// Report implements Policy.
func (d *downbeat) Report() Report { return Report{Plans: d.Renewals(), Elapsed: d.elapsed} }
