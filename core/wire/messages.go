// Package wire holds the messages between frontends, the scheduler and backends, and their
// encoding: versioned, little-endian, length-limited, fuzzed, no allocation per message after
// warm-up. Every frame is a fixed header (length, type, version) followed by the message.
//
// Times on the wire are remaining budgets, never clock readings: each host has its
// own monotonic clock.
package wire

import (
	"time"

	"downbeat.dev/core/model"
)

// Version is the protocol's version. A peer may speak VersionMin, so that a cluster can be upgraded part by
// part; one that speaks another is refused by name in the handshake.
const (
	Version    = 9
	VersionMin = 4
)

// Versions from which a message says more.
const (
	StagesVersion   = 7 // results tell of their stages
	GPUsVersion     = 8 // backends tell their GPUs' kinds and memory
	NodesVersion    = 8 // backends are nodes, whose memory inputs may lie in
	SequenceVersion = 8 // models tell of sequences
	OptionalVersion = 9 // models tell of inputs that requests may leave out, and of what they are an exit of
)

// The window of a frontend's session: how many places it has for live requests.
const (
	WindowDefault = 1 << 16
	WindowMax     = 1 << 22
)

// Submit offers one request. Frontend → scheduler.
type Submit struct {
	// ID is chosen by the frontend. Its low bits, modulo the session's Window, name one of as many
	// places: no two live requests of a session may share one.
	ID       uint64
	Model    uint32 // from model.Info
	Priority uint8
	Budget   int64            // ns until the deadline, counted from sending
	Input    model.Descriptor // in the frontend's memory, or that of the node that it names
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
	Session uint32 // the number by which Execute and Peer name a frontend
}

// Refusal declines a session and closes it. Scheduler → frontend or backend.
type Refusal struct {
	Fatal bool   // trying again cannot help: wrong version, wrong token, bad hello
	Text  string // one clear sentence
}

// FrontendHello opens a frontend's session. Token must match the scheduler's.
type FrontendHello struct {
	Version  uint16
	Name     string
	Token    string
	DataAddr string // where backends reach this frontend's data plane (rdma.Node.Addr)
	Window   uint32 // places for live requests, a power of two up to WindowMax; 0: WindowDefault
}

// BackendModel is a model that a backend can run or load, with its measured profile on that backend.
type BackendModel struct {
	Info    model.Info      // ID unset: the scheduler numbers models by name and version
	Profile []time.Duration // Profile[b-1] = ℓ(b). Empty: not known before it is loaded
	Loaded  []bool          // by GPU: it takes batches of the model now; nil: every GPU does. Since protocol 5
}

// BackendHello opens a backend's session.
type BackendHello struct {
	Version    uint16
	Name       string
	Token      string
	SubCluster string
	GPUs       []string // display names; index = the GPU's number on this backend
	Models     []BackendModel
	Failed     []model.Info // models that it should serve and cannot, with a Reason each; since protocol 5
	Details    []GPUDetail  // by GPU, or none; since protocol 8
	DataAddr   string       // where other backends reach its data plane; empty: they cannot. Since protocol 8
}

// GPUDetail is what a plan needs to know of a GPU.
type GPUDetail struct {
	Kind   string // GPUs of one kind run models alike, such as "NVIDIA H100"
	Memory uint64 // bytes; 0: not known
}

// Peer tells a backend how to reach a node: a frontend, or a backend, itself among them. Sent before the first Execute that
// names it.
type Peer struct {
	Frontend uint32 // by which an Item names it; 0: it is a backend
	Node     uint32 // by which an Item's Input names it; 0: it is a frontend. Since protocol 8
	DataAddr string // empty: the node is gone
	Staged   bool   // a frontend that reads results that tell of their stages; since protocol 7
}

// Item is one request within Execute. It takes half a cache line: a scheduler keeps those of all
// batches under way.
type Item struct {
	ID       uint64           // the frontend's own request id
	Frontend uint32           // the place of the reply
	Budget   uint32           // µs until the deadline, counted from sending
	Input    model.Descriptor // its Node is the source; 0: the frontend
}

// Execute orders a batch. Scheduler → backend.
type Execute struct {
	Batch  uint64
	GPU    uint32 // index into BackendHello.GPUs
	Model  uint32 // index into BackendHello.Models
	Answer uint32 // since protocol 6: model.Info.ID + 1 of the variant of a family that this is; 0: it was asked for by itself
	Start  int64  // ns from sending until the batch is to start
	Latest int64  // ns from sending until a start is too late
	Items  []Item
}

// ItemFailure names a request of a batch that got no output. BackendLost says that its GPU was lost or hangs
// while it ran, NoBackend that it was before: nobody was told, and the scheduler gives the request to others.
type ItemFailure struct {
	Index  uint32
	Reason model.Reason // below 128
	Untold bool         // the frontend was not told: the scheduler gives the request to others once, or tells
}

// Done reports a finished batch with what was measured. Backend → scheduler. Outputs went straight
// to the frontends.
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
