// Package wire holds the messages between frontends, the scheduler and backends, and their encoding: versioned,
// little-endian, length-limited, fuzzed, without allocation per message after warm-up. Every frame is a fixed header
// (length, type, version) followed by messages.
//
// Times on the wire are remaining budgets, never clock readings: each host has its own monotonic clock.
package wire

import (
	"time"

	"downbeat.dev/core/model"
)

// Version is the protocol's version. A peer may speak any version from VersionMin, so that a cluster can be upgraded
// part by part; the handshake refuses others with an error that names the version.
const (
	Version    = 10
	VersionMin = 4
)

// Versions in which messages gained fields.
const (
	StagesVersion   = 7  // results contain stages
	GPUsVersion     = 8  // backends report their GPUs' kinds and memory
	NodesVersion    = 8  // backends are nodes: inputs may lie in their memory
	SequenceVersion = 8  // models describe sequences
	OptionalVersion = 9  // models describe optional inputs and early exits
	ReadyVersion    = 10 // submits say when their input will be there
	LoadVersion     = 10 // backends tell how long a model takes to load
	PictureVersion  = 10 // models describe how pictures become inputs
	PinnedVersion   = 10 // spare work may be of one GPU
)

// The window of a frontend's session: the number of its places for live requests.
const (
	WindowDefault = 1 << 16
	WindowMax     = 1 << 22
)

// Submit offers one request. Frontend → scheduler.
type Submit struct {
	// ID is chosen by the frontend. Its low bits, modulo the session's Window, are the request's place: no two live
	// requests of a session may have the same.
	ID       uint64
	Model    uint32 // from model.Info
	Priority uint8
	Budget   int64            // ns until the deadline, counted from sending
	Input    model.Descriptor // in the memory of the frontend, or of the node that it names
	// ReadyIn is how long after sending the input will be there at the earliest, in ns; 0: it is there. The scheduler
	// sends no batch with the request that could read it before. Another Submit of the request with 0 says that the
	// input is there now. Since protocol 10; an earlier scheduler takes the input to be there.
	ReadyIn int64
}

// Cancel withdraws a request that may still be queued. Frontend → scheduler.
type Cancel struct {
	ID    uint64
	Model uint32 // as submitted
}

// Outcome ends a request without an output. Scheduler → frontend.
type Outcome struct {
	ID     uint64
	Reason model.Reason
}

// Welcome accepts a session. Scheduler → frontend or backend.
type Welcome struct {
	Version uint16
	Session uint32 // the frontend's number in Execute and Peer
}

// Refusal declines a session and closes it. Scheduler → frontend or backend.
type Refusal struct {
	Fatal bool   // trying again cannot help: wrong version, wrong token, bad hello
	Text  string // one sentence with the reason
}

// FrontendHello opens a frontend's session. Token must match the scheduler's.
type FrontendHello struct {
	Version  uint16
	Name     string
	Token    string
	DataAddr string // where backends reach this frontend's data plane (rdma.Node.Addr)
	Window   uint32 // places for live requests, a power of two up to WindowMax; 0: WindowDefault
}

// BackendModel is a model that a backend can run or load, with its profile measured there.
type BackendModel struct {
	Info    model.Info      // ID unset: the scheduler numbers models by name and version
	Profile []time.Duration // Profile[b-1] = ℓ(b). Empty: unknown until it is loaded
	Loaded  []bool          // by GPU: whether it takes batches of the model now; nil: every GPU does. Since protocol 5
	Load    time.Duration   // of loading and warming up on one GPU; 0: never timed. Since protocol 10
}

// BackendHello opens a backend's session.
type BackendHello struct {
	Version    uint16
	Name       string
	Token      string
	SubCluster string
	GPUs       []string // display names; index = the GPU's number on this backend
	Models     []BackendModel
	Failed     []model.Info // models that it should serve and cannot, each with a Reason; since protocol 5
	Details    []GPUDetail  // by GPU, or empty; since protocol 8
	DataAddr   string       // where other backends reach its data plane; empty: they cannot. Since protocol 8
}

// GPUDetail describes a GPU for plans.
type GPUDetail struct {
	Kind   string // GPUs of one kind run models alike, such as "NVIDIA H100"
	Memory uint64 // bytes; 0: unknown
}

// Peer tells a backend how to reach a node: a frontend or a backend, including itself. Sent before the first Execute
// that names the node.
type Peer struct {
	Frontend uint32 // its number in an Item; 0: it is a backend
	Node     uint32 // its number in an Item's Input; 0: it is a frontend. Since protocol 8
	DataAddr string // empty: the node is gone
	Staged   bool   // the frontend understands results with stages; since protocol 7
}

// Item is one request of an Execute. It takes half a cache line, because a scheduler keeps those of all batches in
// flight.
type Item struct {
	ID       uint64           // the frontend's own request id
	Frontend uint32           // the frontend that gets the reply
	Budget   uint32           // µs until the deadline, counted from sending
	Input    model.Descriptor // its Node is the source; 0: the frontend
}

// Execute orders a batch. Scheduler → backend.
type Execute struct {
	Batch  uint64
	GPU    uint32 // index into BackendHello.GPUs
	Model  uint32 // index into BackendHello.Models
	Answer uint32 // since protocol 6: for a variant of a family, its model.Info.ID + 1; 0: the request named the model itself
	Start  int64  // ns from sending until the batch is to start
	Latest int64  // ns from sending until a start is too late
	Items  []Item
}

// ItemFailure names a request of a batch that got no output. BackendLost means that its GPU was lost or hung while it
// ran, NoBackend that this happened before: the frontend has not been told, and the scheduler gives the request to
// another backend.
type ItemFailure struct {
	Index  uint32
	Reason model.Reason // below 128
	Untold bool         // the frontend was not told: the scheduler gives the request to another backend once, or tells the frontend
}

// Done reports a finished batch and its measured times. Backend → scheduler. Outputs go directly to the frontends.
type Done struct {
	Batch    uint64
	GPU      uint32
	Fetch    int64 // ns from receiving Execute until all inputs were there
	Wait     int64 // ns the batch then waited for its GPU or its start time
	Exec     int64 // ns on the GPU
	FreeIn   int64 // ns from sending until the GPU is free; 0: free now
	Failures []ItemFailure
}

// Ping and Pong measure control delay; either side may ask.
type (
	Ping struct{ Stamp int64 }
	Pong struct {
		Stamp int64
		Hold  int64 // ns between receiving the Ping and sending this
	}
)
