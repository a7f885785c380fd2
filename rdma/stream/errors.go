package stream

import (
	"errors"
	"fmt"

	"downbeat.dev/rdma/memory"
)

// Errors with which a stream or its handshake ends; package rdma exports them.
var (
	ErrPeerLost = errors.New("rdma: peer lost")
	ErrVersion  = errors.New("rdma: peer speaks another version")
	ErrAuth     = errors.New("rdma: wrong token or certificate")
	ErrGivenUp  = errors.New("rdma: read given up: the peer was too slow")
)

// ErrBusy is the answer of a node without room for another peer.
var ErrBusy = fmt.Errorf("%w: it has as many peers as it allows", memory.ErrTooLarge)
