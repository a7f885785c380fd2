package backend

import (
	"errors"
	"fmt"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// Two rooms say how large a buffer may be: a descriptor must have room for every offset in one.
const _ = uint(model.BufferMax - rdma.BufferMax)

// ErrNoNumber is HeldInput.Place's while no scheduler has given this backend a number.
var ErrNoNumber = errors.New("the scheduler has given this backend no number by which inputs in its memory could be named")

// HeldInput is an input that lies in a backend's registered memory: requests may name it in place of memory of their
// frontend, and the backends that run them read it from there, one-sidedly. Its methods may be called from any goroutine.
type HeldInput struct {
	peers  *peers
	memory *rdma.Buffer
	remote rdma.Remote
}

// HoldInput copies an input into registered memory, where it can be read until Free. The error wraps rdma.ErrTooLarge or
// rdma.ErrNoMemory.
func (b *Backend) HoldInput(input []byte) (*HeldInput, error) {
	// One byte at least, so that every input has memory of its own.
	memory, err := b.node.Alloc(max(len(input), 1))
	if err != nil {
		return nil, fmt.Errorf("hold an input of %d bytes: %w", len(input), err)
	}
	copy(memory.Bytes(), input)
	remote := memory.Offer()
	remote.Length = uint32(len(input))
	return &HeldInput{peers: &b.peers, memory: memory, remote: remote}, nil
}

// Place is what requests name it by, for as long as the session with the scheduler lasts: another scheduler may number its
// backends otherwise, and a place that it does not know ends in InputUnavailable.
func (h *HeldInput) Place() (Descriptor, error) {
	node := h.peers.own.Load()
	if node == 0 {
		return model.Descriptor{}, ErrNoNumber
	}
	return model.Descriptor(h.remote).In(node), nil
}

// Free ends all reading and gives the memory back. It must be called once.
func (h *HeldInput) Free() { h.memory.Free() }

// noteOwn learns this backend's number from what the scheduler tells of all.
func (p *peers) noteOwn(n wire.Peer) {
	switch {
	case n.Node > model.NodesMax: // by a scheduler of an earlier version; in a descriptor it means something else
	case n.DataAddr == p.node.Addr():
		p.own.Store(n.Node)
	case n.Node == p.own.Load():
		p.own.Store(0)
	}
}
