package dispatch

import (
	"cmp"
	"fmt"
	"slices"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// Setting is the measured setting.
type Setting struct {
	Models, GPUs, Cores int
	// Variants is the number of variants of each model, which is then a family, and Kinds the number of kinds of GPUs; 0
	// counts as 1.
	Variants, Kinds int
}

// The workload: ℓ(b) = 200 µs·b + 2 ms up to 64 and an SLO of 100 ms for every model, even popularity. With full
// batches a GPU sustains 4,300 r/s, so 10,000 GPUs sustain 43 M r/s. The most accurate variant of a family takes as long
// on the fastest kind of GPUs; see families.go.
const (
	alpha    = 200_000
	beta     = 2_000_000
	batchMax = 64
	slo      = 100_000_000
	burst    = 128     // requests that a frontend sends at once: at 20 M requests/s, those of 6.4 µs
	window   = 1 << 21 // 20 M requests/s, all for an SLO
)

// rig is an engine with emulated GPUs and generators, one thread per core.
type rig struct {
	set      Setting
	e        *engine.Engine
	kinds    []*kind
	families []uint32 // their ids
	cores    []*core
	clock    engine.Clock
}

// withDefaults counts 0 variants and 0 kinds as 1.
func (s Setting) withDefaults() Setting {
	s.Variants, s.Kinds = cmp.Or(s.Variants, 1), cmp.Or(s.Kinds, 1)
	return s
}

// newRig opens an engine with its GPUs, and a generator on each core.
func newRig(set Setting, clock engine.Clock) (*rig, error) {
	set = set.withDefaults()
	r := &rig{set: set, clock: clock}
	e, err := engine.New(engine.Options{Cores: set.Cores, Manual: true, RequestsMax: wire.WindowMax, Clock: clock})
	if err != nil {
		return nil, err
	}
	r.e = e

	for i := range set.Cores {
		c := r.newCore(i, r)
		c.loop = e.Loops()[i]
		r.cores = append(r.cores, c)
	}

	if err = r.openKinds(); err != nil {
		return nil, err
	}

	// Open the frontends last: the models come with the backend.
	for _, c := range r.cores {
		if c.front, err = e.OpenFrontend(wire.FrontendHello{Name: fmt.Sprint("generator ", c.number), Window: window}, r); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// newCore returns the generator and the emulated GPUs of one core, for a dispatcher.
func (r *rig) newCore(number int, to dispatcher) *core {
	c := &core{r: r, to: to, number: number, id: uint64(number) << 48, dones: make([][]wire.Done, r.set.Kinds)}

	// A model's partition is its id modulo the number of partitions: a core uses only its own.
	c.first, c.step, c.models = uint64(number), uint64(r.set.Cores), uint64((r.set.Models+r.set.Cores-1-number)/r.set.Cores)
	c.drawn = c.models
	return c
}

// dispatch implements dispatcher by the engine.
func (r *rig) dispatch(c *core, now sched.Time, m []wire.Submit) {
	c.front.Submit(m)
	r.e.Poll(now)
}

// reportDone implements dispatcher.
func (r *rig) reportDone(kind int, m []wire.Done) { r.kinds[kind].back.Done(m) }

// Models implements engine.FrontendPort. It notes the families, whose ids follow those of their variants.
func (r *rig) Models(m []model.Info) {
	for i := range m {
		if m[i].IsFamily() && !slices.Contains(r.families, m[i].ID) {
			r.families = append(r.families, m[i].ID)
		}
	}
}

// These complete the ports: the rig has no placements, commands or spare work, and its backends are never cut.

func (r *rig) Place([]wire.Placement)      {}
func (r *rig) Command([]wire.ModelCommand) {}
func (r *rig) Spare([]wire.SpareStart)     {}
func (r *rig) Answers([]wire.ModelAnswer)  {}
func (r *rig) Peers([]wire.Peer)           {}
func (r *rig) Cut(error)                   {}

// Outcomes counts requests that ended without an output; the id's top bits name the core.
func (r *rig) Outcomes(m []wire.Outcome) {
	c := r.cores[m[0].ID>>48]
	c.mu.Lock()
	c.dropped += uint64(len(m))
	c.mu.Unlock()
}

func (r *rig) closeRig() { r.e.Close() }
