package engine

import (
	"fmt"
	"slices"

	"downbeat.dev/core/limits"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// registry knows the frontends, backends, sub-clusters and models. One goroutine owns it (the caller's with
// Options.Manual); it takes partitions' and rankers' locks one at a time.
//
// A model is served by every sub-cluster that has it loaded: these are its homes.
type registry struct {
	e        *Engine
	fronts   []*Frontend // by slot; nil: free
	gens     []uint32    // generation of each slot
	backends []*Backend  // in the order of their arrival
	clusters []*cluster  // by sub-cluster number; 0 is nowhere
	models   []*entry    // by model id
	byName   map[string]uint32
	families map[string]*family
	profiles profiles
	vacant   []uint32 // ids of forgotten models, the one forgotten first in front
	gpuFree  []sched.GPUID
	gpuNext  sched.GPUID
	lastNode uint32         // the node number assigned last
	epoch    uint32         // of the GPU placed latest
	awaited  []*gpu         // that still run batches of another sub-cluster
	ctrl     sched.Duration // in force
	data     sched.Duration
	measured sched.Time
	spare    spare
	windows  int           // sum of the sessions' windows
	crowds   []sched.Crowd // of the latest shareCrowds; reused
	pricing  pricing
	rollout  rollout
	heard    heardPlan
	epochs   epochs
	scaling  scaling
	toldPlan uint64 // the highest plan number that a backend reported
	standsBy bool   // another scheduler leads

	foretelling bool // some backend has spare work

	commands    map[uint64]*command // by the number sent to backends
	commandRoom limits.Commands
	lastCommand uint64
}

func (g *registry) start(e *Engine) {
	g.e = e
	g.byName, g.commands, g.commandRoom.Most = map[string]uint32{}, map[uint64]*command{}, commandsMax
	g.families = map[string]*family{}
	g.clusters = []*cluster{{}}
	g.pricing.e = e
	g.rollout.state = PlanNone
	g.fronts = []*Frontend{nil} // slot 0 is unused: number 0 means no frontend
	g.gens = []uint32{0}
	g.ctrl, g.data = sched.Duration(e.o.Ctrl), sched.Duration(e.o.Data)
}

func (g *registry) addFrontend(f *Frontend) error {
	// The window is checked first, before anything would have to be undone.
	if err := g.checkWindow(f); err != nil {
		return err
	}

	i := slices.Index(g.fronts[1:], nil) + 1
	if i == 0 {
		if len(g.fronts) == FrontendsMax {
			return fmt.Errorf("%d frontends are connected, at most %d", FrontendsMax-1, FrontendsMax-1)
		}
		i = len(g.fronts)
		g.fronts, g.gens = append(g.fronts, nil), append(g.gens, 0)
	}

	g.windows += int(f.window)

	// The generation tells messages of a past session from those of the next one in its slot.
	g.gens[i]++
	f.number = uint32(i) + g.gens[i]*FrontendsMax
	g.fronts[i] = f

	// Backends must know the peer before it can submit, because a batch may name it at once.
	for _, b := range g.backends {
		b.port.Peers([]wire.Peer{f.asPeer()})
	}

	// From here on outcomes reach the session. The catalogue comes next, because clients name models by its ids.
	g.e.fronts[i].Store(f)
	if m := g.e.Models(); len(m) > 0 {
		f.port.Models(m)
	}
	return nil
}

// asPeer is the frontend's announcement to backends.
func (f *Frontend) asPeer() wire.Peer {
	return wire.Peer{Frontend: f.number, DataAddr: f.hello.DataAddr, Staged: f.hello.Version >= wire.StagesVersion}
}

// checkWindow checks the window that a frontend asks for.
func (g *registry) checkWindow(f *Frontend) error {
	f.window = f.hello.Window
	if f.window == 0 {
		f.window = wire.WindowDefault
	}

	// Rounded up to a power of two, so that the low bits of an id are its place.
	if f.window&(f.window-1) != 0 || f.window > wire.WindowMax {
		return fmt.Errorf("frontend hello: window %d, want a power of two up to %d", f.window, wire.WindowMax)
	}
	if g.windows+int(f.window) > windowsMax {
		return fmt.Errorf("frontend hello: window %d, but the other sessions have %d of the %d places there are", f.window, g.windows, windowsMax)
	}
	return nil
}

func (g *registry) removeFrontend(f *Frontend) {
	i := f.number % FrontendsMax
	g.fronts[i] = nil
	g.windows -= int(f.window)
	for _, b := range g.backends {
		b.port.Peers([]wire.Peer{{Frontend: f.number}})
	}
}
