package engine

import (
	"slices"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// Every backend that has a data address is a node, as frontends are: an input may lie in its memory, wherever the reply
// goes. Frontends are named by their sessions, backends by numbers so small that a descriptor has room for one.

// nameNode numbers a backend and tells all of it, itself too: so it learns its own number. g.backends is without it yet.
func (g *registry) nameNode(b *Backend) {
	if b.hello.DataAddr == "" {
		return
	}

	taken := func(n uint32) bool {
		return slices.ContainsFunc(g.backends, func(x *Backend) bool { return x.node == n })
	}
	for n := uint32(1); n <= model.NodesMax; n++ {
		// Numbers go round, so that one that was given up stays nobody's for as long as there are others.
		number := (g.lastNode+n-1)%model.NodesMax + 1
		if !taken(number) {
			b.node, g.lastNode = number, number
			break
		}
	}
	if b.node == 0 {
		g.e.log.Warn("a backend's memory is not read by others: there are too many", "backend", b.hello.Name, "most", model.NodesMax)
		return
	}

	news := []wire.Peer{b.asPeer()}
	for _, x := range append(slices.Clone(g.backends), b) {
		x.port.Peers(news)
	}
}

// asPeer is what backends are told of a backend.
func (b *Backend) asPeer() wire.Peer { return wire.Peer{Node: b.node, DataAddr: b.hello.DataAddr} }

// otherNodes are the backends that have a number.
func (g *registry) otherNodes() (all []wire.Peer) {
	for _, b := range g.backends {
		if b.node != 0 {
			all = append(all, b.asPeer())
		}
	}
	return all
}

// forgetNode tells the others that a backend has left.
func (g *registry) forgetNode(b *Backend) {
	if b.node == 0 {
		return
	}
	for _, x := range g.backends {
		x.port.Peers([]wire.Peer{{Node: b.node}})
	}
}
