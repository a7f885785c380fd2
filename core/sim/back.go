package sim

import (
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/control"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// back is a backend: it outlives its sessions, and dies and returns.
type back struct {
	peer
	index    int
	hello    wire.BackendHello
	tempo    float64
	slow     float64 // batches take that much longer now
	unlike   float64 // its profile is that much longer than the models'
	beyond   float64 // and always that much longer than its profile says
	life     int     // grows when it dies
	dead     bool
	hung     Time           // until then nothing ends
	sessions []*backSession // by scheduler: the latest
	freeAt   []Time         // per GPU, when its queue is empty
	broken   []bool         // per GPU: every batch fails
	running  []*order       // not ended, in no order
	epoch    uint64         // the checker's: of the newest order that it has taken
	shelf    shelf
}

// oneKind is how far the profiles of backends may differ that name the same kind of GPU; others name none.
const oneKind = 0.15

func (c *Cluster) newBack(i int) *back {
	b := &back{peer: newPeer(c), index: i, tempo: c.drift(), slow: 1, beyond: 1, freeAt: make([]Time, c.o.GPUs), broken: make([]bool, c.o.GPUs),
		sessions: make([]*backSession, len(c.schedulers))}

	b.switched, b.follows = b.dropOrders, b.tellFollow
	if b.old {
		c.happens(OldPeer, int64(i), 1)
	}

	cluster := i % c.o.Clusters
	b.hello = wire.BackendHello{Version: wire.Version, Name: fmt.Sprint("b", i), GPUs: make([]string, c.o.GPUs)}
	if c.o.Named {
		b.hello.SubCluster = fmt.Sprint("s", cluster)
	}

	// One factor for all models: it is the backend's GPUs that are slower.
	b.unlike = 1 + c.o.Unlike*c.rng.Float64()
	if c.o.Beyond > 0 {
		b.beyond = 1 + c.o.Beyond*c.rng.Float64()
	}
	for _, k := range c.modelsOf(cluster) {
		m := &c.models[k]
		table := slices.Clone(m.table)
		for j := range table {
			table[j] = time.Duration(float64(table[j]) * b.unlike)
		}
		c.scaleKind(table, cluster)
		b.hello.Models = append(b.hello.Models, wire.BackendModel{Profile: table, Info: model.Info{Name: m.name, Version: "1", SLO: int64(m.slo),
			BatchMax: uint32(len(table)), Family: m.family, Accuracy: m.accuracy}})
	}
	switch {
	case c.o.loading():
		b.stockShelf(cluster)
	case c.o.Unlike <= oneKind || c.o.OneKind:
		b.hello.Details = slices.Repeat([]wire.GPUDetail{{Kind: c.kindOf(cluster)}}, c.o.GPUs)
	}

	return b
}

// leastProfile is the least that any backend of the same models measured of one of them, by the batch's size. Where all measure alike
// it is the backend's own.
func (c *Cluster) leastProfile(b *back, model uint32) []time.Duration {
	own := b.hello.Models[model].Profile
	if c.o.Unlike == 0 {
		return own
	}

	// Backends differ by one factor for all models, so that one size tells which is the quickest.
	least := own
	for _, other := range c.backs {
		if t := other.hello.Models; other.index%c.o.Clusters == b.index%c.o.Clusters && t[model].Profile[0] < least[0] {
			least = t[model].Profile
		}
	}
	return least
}

// isSlow says whether the backend's batches take longer than they are planned with: such ones may end late. GPUs of one kind are planned as the
// slowest of them says, at most oneKind more than half of them (docs/decisions/0238); others as no less than their own backend says.
func (b *back) isSlow() bool {
	c := b.c
	if !c.o.OneKind {
		return b.beyond > 1
	}

	var said []float64
	for _, other := range c.backs {
		if other.index%c.o.Clusters == b.index%c.o.Clusters {
			said = append(said, other.unlike)
		}
	}
	slices.Sort(said)
	most, half := said[len(said)-1], said[(len(said)-1)/2]

	const rounded = 1e-6 // profiles are whole ns
	return b.unlike*b.beyond > min(most, half*(1+oneKind))*(1+rounded)
}

func (b *back) connectAll() {
	for _, s := range b.c.schedulers {
		b.connect(s)
	}
}

// connect opens a session with a scheduler, sooner or later.
func (b *back) connect(sch *scheduler) {
	c, i := b.c, sch.index
	if b.dead || b.sessions[i] != nil && b.sessions[i].up {
		return
	}

	if !b.mayOpen(sch) {
		c.after(retryEvery, func() { b.connect(sch) })
		return
	}

	s := &backSession{b: b, flights: map[uint64]*order{}, peers: map[uint32]bool{}, gpus: make([]seenGPU, c.o.GPUs),
		link: link{sch: sch, life: sch.life, up: true}, fronts: sch.book.sessions, told: control.Told{GPUs: c.o.GPUs}}
	b.sessions[i] = s
	c.note("backend", int64(b.index), int64(i), 0)

	// The engine may keep what it is given, and the backend opens more sessions with the same hello.
	h, err := sch.e.OpenBackend(b.greet(), s)
	if err != nil {
		c.check.fail("OpenBackend: %v", err)
		return
	}
	s.h = h

	b.opened(i)
	s.tellLead()
	s.offerLearners()
}

// hang holds up everything that has not ended.
func (b *back) hang(d Duration) {
	c := b.c
	if b.dead || b.hung > c.now {
		return
	}

	b.hung = c.now.Add(d)
	for _, o := range b.running {
		o.end = o.end.Add(d)
	}

	for g := range b.freeAt {
		b.freeAt[g] = max(b.freeAt[g], c.now).Add(d)
	}
}

// die loses all it had; it returns after a while.
func (b *back) die(back Duration) {
	c := b.c
	if b.dead {
		return
	}
	c.happens(BackendDies, int64(b.index), int64(back))
	b.life++
	b.dead, b.running = true, nil
	b.keepShelf()

	clear(b.broken) // what starts again has a GPU that works
	for _, s := range b.sessions {
		if s != nil && s.up {
			s.up = false
			c.after(c.within(0, 200e6), s.close)
		}
	}

	// What starts again remembers no leader: it obeys the first that it hears of.
	for i := range b.standings {
		b.standings[i] = control.Standing{}
	}
	b.obeyed, b.highest, b.told, b.epoch = -1, 0, wire.Follow{}, 0

	c.after(back, b.revive)
}

func (b *back) revive() {
	if !b.dead {
		return
	}
	b.dead, b.hung, b.slow = false, 0, 1
	for g := range b.freeAt {
		b.freeAt[g] = b.c.now
	}
	b.connectAll()
}
