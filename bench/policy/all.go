package policy

import (
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// Named is a policy with its name in tables.
type Named struct {
	Name string
	New  func(*sim.World) sim.Server
}

// All returns every policy: Downbeat, then Symphony's forms, then the others.
func All() []Named {
	symphony := func(f Form) func(*sim.World) sim.Server {
		return func(w *sim.World) sim.Server { return NewSymphony(w, f) }
	}
	clockwork := func(buffer, ahead sched.Duration) func(*sim.World) sim.Server {
		return func(w *sim.World) sim.Server { return NewClockwork(w, buffer, ahead) }
	}
	nexus := func(frontends int) func(*sim.World) sim.Server {
		return func(w *sim.World) sim.Server { return NewNexus(w, frontends) }
	}

	return []Named{
		{"downbeat", func(w *sim.World) sim.Server { return sim.NewDownbeat(w) }},
		{"symphony-printed", symphony(Printed)},
		{"symphony-text", symphony(Text)},
		{"symphony-windowed", symphony(Windowed)},
		{"symphony-relaxed", symphony(Relaxed)},
		{"clockwork", clockwork(ClockworkBuffer, ClockworkAhead)},
		{"clockwork-bare", clockwork(0, 0)},
		{"shepherd", NewShepherd},
		{"nexus-1", nexus(1)},
		{"nexus-8", nexus(8)},
		{"clipper", NewClipper},
		{"proteus", NewProteus},
		{"eager", NewEager},
	}
}
