// Package rdma is the data plane: memory registered once in pools, one-sided reads of what a peer
// offered, and messages for outputs. Providers: verbs (tag rdma), shared memory on one host, TCP
// everywhere, and a direct copy between nodes of one process. It knows nothing of models or
// scheduling.
package rdma

import "errors"

// Errors that a read or a send can end in. Details are wrapped around them.
var (
	ErrNotSupported = errors.New("rdma: not supported on this host")
	ErrClosed       = errors.New("rdma: closed")
	ErrPeerLost     = errors.New("rdma: peer lost")
	ErrNotOffered   = errors.New("rdma: read of memory that was not offered") // stale key, out of range
	ErrTooLarge     = errors.New("rdma: larger than the limit")
	ErrNoMemory     = errors.New("rdma: registered memory exhausted")
	ErrVersion      = errors.New("rdma: peer speaks another version")
	ErrAuth         = errors.New("rdma: wrong token or certificate")
	ErrProtocol     = errors.New("rdma: peer broke the protocol")
	ErrInvalid      = errors.New("rdma: invalid argument")
)

// Remote says where offered bytes lie in a peer's registered memory; it travels in wire.Descriptor.
// A reader may narrow it (a larger Offset, a smaller Length) to read a part.
type Remote struct {
	Key    uint64
	Offset uint64 // bytes from the buffer's start
	Length uint32 // bytes
}

// Read is one one-sided read of a chain. len(Dst) must equal Src.Length, and Dst must lie in a
// Buffer of the local node (providers may need it registered).
type Read struct {
	Dst []byte
	Src Remote
}

// ChainError is what done gets when some reads of a chain failed and the peer is still there.
// Reads that are not named were filled. errors.Is sees Err (ErrNotOffered).
type ChainError struct {
	Failed []int // indexes into the chain, ascending
	Err    error
}

func (e *ChainError) Error() string { return e.Err.Error() }

// Unwrap returns the cause common to the failed reads.
func (e *ChainError) Unwrap() error { return e.Err }
