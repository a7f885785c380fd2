package stream

import (
	"errors"
	"fmt"

	"downbeat.dev/rdma/memory"
)

// Errors that a stream or its handshake ends in; package rdma shows them to its users.
var (
	ErrPeerLost = errors.New("rdma: peer lost")
	ErrVersion  = errors.New("rdma: peer speaks another version")
	ErrAuth     = errors.New("rdma: wrong token or certificate")
	ErrGivenUp  = errors.New("rdma: read given up: the peer was too slow")
)

// ErrBusy is what a node says that has no room for one more peer.
var ErrBusy = fmt.Errorf("%w: it has as many peers as it allows", memory.ErrTooLarge)
