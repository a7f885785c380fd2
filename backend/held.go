package backend

import (
	"errors"
	"fmt"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// Two packages limit a buffer's size: a descriptor must have room for every offset in one.
const _ = uint(model.BufferMax - rdma.BufferMax)

// ErrNoNumber is returned by HeldInput.Place while no scheduler has numbered this backend.
var ErrNoNumber = errors.New("the scheduler has given this backend no number by which inputs in its memory could be named")

// HeldInput is an input in a backend's registered memory. Requests may name it instead of memory of their frontend,
// and the backends that run them read it one-sidedly. Its methods may be called from any goroutine.
type HeldInput struct {
	peers  *peers
	memory *rdma.Buffer
	remote rdma.Remote
}

// HoldInput copies an input into registered memory, where it can be read until Free. The error wraps rdma.ErrTooLarge
// or rdma.ErrNoMemory.
func (b *Backend) HoldInput(input []byte) (*HeldInput, error) {
	// At least one byte, so that every input has memory of its own.
	memory, err := b.node.Alloc(max(len(input), 1))
	if err != nil {
		return nil, fmt.Errorf("hold an input of %d bytes: %w", len(input), err)
	}
	copy(memory.Bytes(), input)
	remote := memory.Offer()
	remote.Length = uint32(len(input))
	return &HeldInput{peers: &b.peers, memory: memory, remote: remote}, nil
}

// Place returns the descriptor for requests. It is valid during the session with the scheduler: another scheduler may
// number its backends differently, and an unknown place ends in InputUnavailable.
func (h *HeldInput) Place() (Descriptor, error) {
	node := h.peers.own.Load()
	if node == 0 {
		return model.Descriptor{}, ErrNoNumber
	}
	return model.Descriptor(h.remote).In(node), nil
}

// Free ends all reads and frees the memory. It must be called once.
func (h *HeldInput) Free() { h.memory.Free() }

// noteOwn learns this backend's number from the scheduler's announcement.
func (p *peers) noteOwn(n wire.Peer) {
	switch {
	case n.Node > model.NodesMax: // from a scheduler of an earlier version; in a descriptor it has another meaning
	case n.DataAddr == p.node.Addr():
		p.own.Store(n.Node)
	case n.Node == p.own.Load():
		p.own.Store(0)
	}
}
