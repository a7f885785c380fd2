// Package wire holds the messages between frontends, the scheduler and backends, and their
// encoding: versioned, little-endian, length-limited, fuzzed, no allocation per message after
// warm-up. Every frame is a fixed header (length, type, version) followed by the message.
//
// Times on the wire are remaining budgets, never clock readings: each host has its
// own monotonic clock.
package wire

// Version is the protocol's version; a peer that speaks another is refused by name in the handshake.
const Version = 3

// Descriptor says where a request's input lies in its frontend's registered memory. It is opaque
// to the scheduler; the rdma package makes and resolves it.
type Descriptor struct {
	Key    uint64 // remote key of the buffer; short-lived, scoped to what was offered
	Offset uint32 // bytes from the buffer's start
	Length uint32 // bytes
}

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
	Model    uint32 // from ModelInfo
	Priority uint8
	Budget   int64 // ns until the deadline, counted from sending
	Input    Descriptor
}

// Cancel withdraws a request that may still be queued. Frontend → scheduler.
type Cancel struct {
	ID    uint64
	Model uint32 // as submitted
}

// Outcome ends a request without an output. Scheduler → frontend.
type Outcome struct {
	ID     uint64
	Reason uint8 // sched.Reason
}

// Tensor describes one input or output of a model, without the batch dimension.
type Tensor struct {
	Name     string
	Datatype string  // Open Inference Protocol names: FP32, UINT8, …
	Shape    []int64 // without the batch dimension
}

// ModelInfo tells a frontend of a model that it may ask for. Scheduler → frontend, on connecting
// and whenever it changes.
type ModelInfo struct {
	ID       uint32
	Name     string // empty: the id stands for no model any more
	Version  string
	SLO      int64 // ns; the budget of a request that names none
	BatchMax uint32
	Inputs   []Tensor
	Outputs  []Tensor
	Ready    bool // some backend serves it now
	Platform string
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

// BackendModel is a model that a backend can run, with its measured profile on that backend.
type BackendModel struct {
	Info    ModelInfo // ID unset: the scheduler numbers models by name and version
	Profile []int64   // ns; Profile[b-1] = ℓ(b)
}

// BackendHello opens a backend's session. Every GPU of a backend can run all its models.
type BackendHello struct {
	Version    uint16
	Name       string
	Token      string
	SubCluster string
	GPUs       []string // display names; index = the GPU's number on this backend
	Models     []BackendModel
}

// Peer tells a backend how to reach a frontend. Sent before the first Execute that names it.
type Peer struct {
	Frontend uint32
	DataAddr string // empty: the frontend is gone
}

// Item is one request within Execute. It takes half a cache line: a scheduler keeps those of all
// batches under way.
type Item struct {
	ID       uint64 // the frontend's own request id
	Frontend uint32
	Budget   uint32 // µs until the deadline, counted from sending
	Input    Descriptor
}

// Execute orders a batch. Scheduler → backend.
type Execute struct {
	Batch  uint64
	GPU    uint32 // index into BackendHello.GPUs
	Model  uint32 // index into BackendHello.Models
	Start  int64  // ns from sending until the batch is to start
	Latest int64  // ns from sending until a start is too late
	Items  []Item
}

// ItemFailure names a request of a batch that got no output. BackendLost says that its GPU was lost or hangs
// while it ran, NoBackend that it was before: nobody was told, and the scheduler gives the request to others.
type ItemFailure struct {
	Index  uint32
	Reason uint8 // sched.Reason
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
