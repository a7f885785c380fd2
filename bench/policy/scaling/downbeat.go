package scaling

import (
	"context"
	"time"

	"downbeat.dev/core/sim"
)

// downbeat is ours: core/sched with the prices of core/engine, as the live system has it. Every device may run every
// variant that can meet the SLO.
type downbeat struct {
	*sim.Downbeat
	elapsed time.Duration
}

func newDownbeat(_ context.Context, w *sim.World, _ Settings) Policy {
	return &downbeat{Downbeat: sim.NewDownbeat(w)}
}

// Wake implements sim.Server. What it takes counts for a plan when it renews prices, with what else is due then.
func (d *downbeat) Wake(now sim.Time) {
	before, begun := d.Renewals(), time.Now()

	d.Downbeat.Wake(now)
	if d.Renewals() > before {
		d.elapsed += time.Since(begun)
	}
}

// Report implements Policy.
func (d *downbeat) Report() Report { return Report{Plans: d.Renewals(), Elapsed: d.elapsed} }
