//go:build linux

package downbeat

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"sync"

	"downbeat.dev/core/control"
	"downbeat.dev/core/engine"
	"downbeat.dev/core/lead"
	"downbeat.dev/core/wire"
)

// joinElection makes the scheduler a candidate in the election, and lets it learn from the leader while it stands by.
func (s *System) joinElection(t *tls.Config) {
	// The name identifies the leader to operators: host, address and process.
	host, _ := os.Hostname()
	name := fmt.Sprintf("%s %s %d", host, s.config.Listen, os.Getpid())
	c := &lead.Candidate{Store: s.config.Election, Scheduler: s.server, Name: name, Logger: s.logOf("core")}

	// The election outlives Start, whose ctx bounds only the start.
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	running.Go(func() {
		learn := func(all []wire.Learned) {
			// A leader's own measurements are newer than those that a former leader may still send.
			if _, leads := s.server.Leads(); !leads {
				s.engine.Learn(all)
			}
		}
		hear := func(l wire.Lead) {
			if l.Leads {
				c.HearGPUs(int(l.GPUs))
			}
		}
		note := func(r *engine.PlanRecord) { _ = s.engine.HearPlan(r) } // a closed engine needs no plan
		if err := control.DialStandby(ctx, s.dialPatiently(t), name, control.Lessons{Learned: learn, Lead: hear, Plan: note}); err != nil {
			s.log.Error("nothing is learned from the leader", "err", err)
		}
	})

	s.onClose(func() error {
		cancel()
		running.Wait()
		return nil
	})
}
