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

// joinElection has the scheduler take part in the election, and learn from the leader while it stands by.
func (s *System) joinElection(t *tls.Config) {
	// The name tells people who leads: host, address and process.
	host, _ := os.Hostname()
	name := fmt.Sprintf("%s %s %d", host, s.config.Listen, os.Getpid())
	c := &lead.Candidate{Store: s.config.Election, Scheduler: s.server, Name: name, Logger: s.logOf("core")}

	// The election outlives Start, whose ctx only bounds the beginning.
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	running.Go(func() {
		learn := func(all []wire.Learned) {
			// Who leads knows better than what a former leader still sends.
			if _, leads := s.server.Leads(); !leads {
				s.engine.Learn(all)
			}
		}
		hear := func(l wire.Lead) {
			if l.Leads {
				c.HearGPUs(int(l.GPUs))
			}
		}
		note := func(r *engine.PlanRecord) { _ = s.engine.HearPlan(r) } // a closed engine has no successor's part
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
