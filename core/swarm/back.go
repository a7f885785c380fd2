package swarm

import (
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/control"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// back is a simulated backend. It outlives its sessions, and it dies and returns.
type back struct {
	peer
	hello     wire.BackendHello
	slow      float64  // factor on batch times during a slowdown
	unlike    float64  // factor of its profile over the models' profiles
	beyond    float64  // factor of its batch times over its profile, for the whole run
	life      int      // incremented when it dies
	hungUntil Time     // until then no batch ends
	freeAt    []Time   // per GPU: when its queue is empty
	broken    []bool   // per GPU: every batch fails
	running   []*order // batches that have not ended, unordered
	epoch     uint64   // for the checker: the epoch of the newest accepted order
	memory    modelMemory
}

// oneKind is the largest difference between profiles of backends that report the same kind of GPU; other backends
// report no kind.
const oneKind = 0.15

// newBack makes backend i, with the models of its sub-cluster.
func (c *Cluster) newBack(i int) *back {
	b := &back{peer: newPeer(c, i), slow: 1, beyond: 1, freeAt: make([]Time, c.o.GPUs), broken: make([]bool, c.o.GPUs)}

	// A backend that obeys another scheduler drops the batches of the former one.
	b.open, b.switched = b.openSession, b.dropOrders
	if b.old {
		c.happens(OldPeer, int64(i), 1)
	}

	cluster := i % c.o.Clusters
	b.hello = wire.BackendHello{Version: wire.Version, Name: fmt.Sprint("b", i), GPUs: make([]string, c.o.GPUs)}
	if c.o.Named {
		b.hello.SubCluster = fmt.Sprint("s", cluster)
	}

	// One factor for all models, since it stands for slower GPUs.
	b.unlike = 1 + c.o.Unlike*c.rng.Float64()
	if c.o.Beyond > 0 {
		b.beyond = 1 + c.o.Beyond*c.rng.Float64()
	}

	for _, k := range c.modelsOf(cluster) {
		b.hello.Models = append(b.hello.Models, b.announcedModel(&c.models[k], cluster))
	}

	switch {
	case c.o.loadsModels():
		b.stockModels(cluster)
	case c.o.Unlike <= oneKind || c.o.OneKind:
		b.hello.Details = slices.Repeat([]wire.GPUDetail{{Kind: c.kindOf(cluster)}}, c.o.GPUs)
	}
	return b
}

// announcedModel returns a model as the backend announces it, with the profile of the backend's GPUs.
func (b *back) announcedModel(m *clusterModel, cluster int) wire.BackendModel {
	table := slices.Clone(m.table)
	for j := range table {
		table[j] = time.Duration(float64(table[j]) * b.unlike)
	}
	b.c.scaleKind(table, cluster)

	return wire.BackendModel{Profile: table, Info: model.Info{Name: m.name, Version: "1", SLO: int64(m.slo),
		BatchMax: uint32(len(table)), Family: m.family, Accuracy: m.accuracy}}
}

// leastProfile returns the smallest profile of a model over all backends with the same models, by batch size. If all
// backends measure alike, it is the backend's own profile.
func (c *Cluster) leastProfile(b *back, model uint32) []time.Duration {
	own := b.hello.Models[model].Profile
	if c.o.Unlike == 0 {
		return own
	}

	// Backends differ by one factor for all models, so one batch size tells which backend is the fastest.
	least := own
	for _, other := range c.backs {
		if t := other.hello.Models; other.index%c.o.Clusters == b.index%c.o.Clusters && t[model].Profile[0] < least[0] {
			least = t[model].Profile
		}
	}
	return least
}

// isSlow reports whether the backend's batches take longer than planned, so that they may end late. GPUs of one kind
// are planned with the slowest profile among them, at most oneKind above the median (docs/decisions/0238); other GPUs
// are planned with at least their own backend's profile.
func (b *back) isSlow() bool {
	c := b.c
	if !c.o.OneKind {
		return b.beyond > 1
	}

	// Compare with the profiles that the engine heard for this kind.
	var said []float64
	for _, other := range c.backs {
		if other.index%c.o.Clusters == b.index%c.o.Clusters {
			said = append(said, other.unlike)
		}
	}

	slices.Sort(said)
	most, half := said[len(said)-1], said[(len(said)-1)/2]

	const rounded = 1e-6 // tolerance: profiles are rounded to whole ns
	return b.unlike*b.beyond > min(most, half*(1+oneKind))*(1+rounded)
}

// hang delays every batch that has not ended.
func (b *back) hang(d Duration) {
	c := b.c
	if b.dead || b.hungUntil > c.now {
		return
	}

	// Batches that run and batches that wait behind them all end later.
	b.hungUntil = c.now.Add(d)
	for _, o := range b.running {
		o.end = o.end.Add(d)
	}

	for g := range b.freeAt {
		b.freeAt[g] = max(b.freeAt[g], c.now).Add(d)
	}
}

// die loses all state of the backend, which returns after a while.
func (b *back) die(back Duration) {
	c := b.c
	if b.dead {
		return
	}

	c.happens(BackendDies, int64(b.index), int64(back))

	// Whatever was scheduled in the former life must not happen in the next one.
	b.life++
	b.dead, b.running = true, nil
	b.keepModels()

	clear(b.broken) // a restarted backend has working GPUs

	for _, l := range b.links {
		if l != nil && l.up {
			l.dropLink()
		}
	}

	// A restarted backend remembers no leader and obeys the first one it hears of.
	for i := range b.standings {
		b.standings[i] = control.Standing{}
	}

	b.obeyed, b.highest, b.followed, b.epoch = -1, 0, wire.Follow{}, 0

	c.after(back, b.revive)
}

// revive starts a dead backend again.
func (b *back) revive() {
	if !b.dead {
		return
	}
	b.dead, b.hungUntil, b.slow = false, 0, 1
	for g := range b.freeAt {
		b.freeAt[g] = b.c.now
	}
	b.connectAll()
}
