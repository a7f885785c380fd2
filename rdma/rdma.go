// Package rdma is the data plane: memory registered once in pools, one-sided reads of buffers that a peer offered,
// and messages for outputs. Providers: verbs (tag rdma), shared memory on one host, TCP everywhere, and a direct copy
// between nodes of one process. It knows nothing of models or scheduling.
package rdma

import (
	"errors"

	"downbeat.dev/rdma/memory"
	"downbeat.dev/rdma/stream"
)

// Errors of reads and sends. Details are wrapped around them.
var (
	ErrNotSupported = errors.New("rdma: not supported on this host")
	ErrClosed       = memory.ErrClosed
	ErrPeerLost     = stream.ErrPeerLost
	ErrNotOffered   = memory.ErrNotOffered // stale key, out of range
	ErrTooLarge     = memory.ErrTooLarge
	ErrNoMemory     = memory.ErrNoMemory
	ErrVersion      = stream.ErrVersion
	ErrAuth         = stream.ErrAuth
	ErrProtocol     = memory.ErrProtocol
	ErrGivenUp      = stream.ErrGivenUp // ReadWithin
	ErrInvalid      = memory.ErrInvalid
)

// Buffer is a piece of registered memory, see Node.Alloc.
type Buffer = memory.Buffer

// Remote locates offered bytes in a peer's registered memory, see Buffer.Offer.
type Remote = memory.Remote

// Read is one one-sided read of a chain. len(Dst) must equal Src.Length, and Dst must lie in a Buffer of the local
// node (providers may need it registered).
type Read = memory.Read

// ChainError is passed to done if some reads of a chain failed and the peer is still connected.
type ChainError = memory.ChainError

// CopyShared copies from or to memory that another process may truncate meanwhile. It returns false if pages of it
// are gone.
func CopyShared(dst, src []byte) bool { return memory.CopyShared(dst, src) }
