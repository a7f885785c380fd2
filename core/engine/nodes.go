package engine

import (
	"slices"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// A backend with a data address is a node, as frontends are: inputs may lie in its memory. Sessions' numbers identify
// frontends; backends have numbers small enough to fit a descriptor.

// nameNode numbers a backend and announces it to all backends, itself included: that is how it learns its number.
// g.backends does not contain it yet.
func (g *registry) nameNode(b *Backend) {
	if b.hello.DataAddr == "" {
		return
	}

	// Each backend has a number of its own, by which requests name its memory.
	taken := func(n uint32) bool {
		return slices.ContainsFunc(g.backends, func(x *Backend) bool { return x.node == n })
	}
	for n := uint32(1); n <= model.NodesMax; n++ {
		// Numbers go round, so a number that was given up stays unused as long as there are others.
		number := (g.lastNode+n-1)%model.NodesMax + 1
		if !taken(number) {
			b.node, g.lastNode = number, number
			break
		}
	}

	if b.node == 0 {
		g.e.log.Warn("backends read no held outputs from this one: there are too many backends", "backend", b.hello.Name, "most", model.NodesMax)
		return
	}

	news := []wire.Peer{b.asPeer()}
	for _, x := range append(slices.Clone(g.backends), b) {
		x.port.Peers(news)
	}
}

// asPeer is the backend's announcement to backends.
func (b *Backend) asPeer() wire.Peer { return wire.Peer{Node: b.node, DataAddr: b.hello.DataAddr} }

// otherNodes returns the backends that have a number.
func (g *registry) otherNodes() (all []wire.Peer) {
	for _, b := range g.backends {
		if b.node != 0 {
			all = append(all, b.asPeer())
		}
	}
	return all
}

// forgetNode announces that a backend has left.
func (g *registry) forgetNode(b *Backend) {
	if b.node == 0 {
		return
	}
	for _, x := range g.backends {
		x.port.Peers([]wire.Peer{{Node: b.node}})
	}
}
