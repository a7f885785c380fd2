// Package control carries wire messages between the scheduler and its frontends and backends: over
// TCP (one listener, handshake with version and token, coalesced writes, reconnect with backoff) or
// within one process (no encoding). It decides nothing.
package control

import "downbeat.dev/core/wire"

// FrontendEvents is what a frontend is told. Calls come from one goroutine and must not block;
// slices are valid during the call.
type FrontendEvents interface {
	Models([]wire.ModelInfo)
	Outcomes([]wire.Outcome)
	Link(up bool, err error) // the session opened, or was lost (reconnecting by itself)
}

// FrontendLink is a frontend's session with the scheduler. Safe for concurrent use; a call on a
// lost link returns ErrUnavailable at once.
type FrontendLink interface {
	Submit([]wire.Submit) error
	Cancel(id uint64) error
	Close() error
}

// BackendEvents is what a backend is told, under the same rules.
type BackendEvents interface {
	Peers([]wire.Peer)
	Execute([]wire.Execute)
	Link(up bool, err error)
}

// BackendLink is a backend's session with the scheduler.
type BackendLink interface {
	Done([]wire.Done) error
	Close() error
}

// To be written here:
//
//	func DialFrontend(ctx context.Context, o DialOptions, hello wire.FrontendHello, ev FrontendEvents) (FrontendLink, error)
//	func DialBackend(ctx context.Context, o DialOptions, hello wire.BackendHello, ev BackendEvents) (BackendLink, error)
//	func Listen(ln net.Listener, s *Server) …           // the scheduler's side
//	func (s *Server) Frontend(hello, ev) / Backend(hello, ev) // the same sessions within one process
//	type DialOptions struct{ Addr, Token string; TLS *tls.Config; … }
