package engine

import "downbeat.dev/core/wire"

// FrontendPort is where a frontend's session takes the engine's messages. Calls come from any
// goroutine, with no lock of the engine held; they must not block. Slices are valid during the call.
// A call that was under way when the session closed may still come shortly after Close.
type FrontendPort interface {
	Models([]wire.ModelInfo)
	Outcomes([]wire.Outcome)
}

// BackendPort is where a backend's session takes the engine's messages, under the same rules.
type BackendPort interface {
	Peers([]wire.Peer)
	Execute([]wire.Execute)
	Cut(err error) // the engine gives the backend up: end the session
}
