// Package control carries wire messages between the scheduler and its frontends and backends, over TCP (one listener,
// handshake with version and token, coalesced writes, pings, reconnect with backoff) or within one process (without
// encoding). It makes no decisions and keeps no requests: when a link breaks, its messages in flight are lost and
// both sides start again.
//
// # Sessions
//
// The client's first frame is its hello. It begins with protocol version and token, so that the scheduler can refuse
// a stranger before it reads more. The answer is one Welcome or one Refusal. After that either side may send at any
// time. The scheduler pings the peer ten times a second; a side that hears nothing for QuietMax closes the
// connection.
//
// # Concurrency
//
// Links may be used from any goroutine. Each link calls events one at a time, from one goroutine. An event may call
// the link, but not Close, which returns after the last event.
package control

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// FrontendEvents receives a frontend's messages. Calls come from one goroutine and must not block; slices are valid
// during the call.
type FrontendEvents interface {
	Models([]model.Info)
	Outcomes([]wire.Outcome)
	Answers([]wire.ModelAnswer)
	Link(up bool, err error) // the session opened, or was lost and is reconnecting
}

// FrontendLink is a frontend's session with the scheduler. It is safe for concurrent use; a call on a lost link
// returns ErrUnavailable at once. When a session is lost, its requests end without an outcome: the frontend resubmits
// them or gives up.
type FrontendLink interface {
	Submit([]wire.Submit) error
	Cancel(wire.Cancel) error
	Command(wire.ModelCommand) error // ends with an answer, or when the session ends
	Close() error
}

// Submitter sends requests in one session. Once the session has ended, Submit returns ErrUnavailable.
type Submitter interface {
	Submit([]wire.Submit) error
}

// BackendEvents receives a backend's messages, under the same rules.
type BackendEvents interface {
	Peers([]wire.Peer)
	Execute([]wire.Execute)
	Place([]wire.Placement)
	Command([]wire.ModelCommand)
	Spare([]wire.SpareStart) // each is answered by one EndSpare
	Link(up bool, err error)
}

// BackendLink is a backend's session with the scheduler. When a session is lost, its batches are given to other
// backends; Done on a later session ignores them.
type BackendLink interface {
	Done([]wire.Done) error
	Offer([]wire.Loadable) error         // models that the backend can load; new or changed since its hello
	Report([]wire.PlacementReport) error // the state of models on its GPUs, at each change
	Answer(wire.ModelAnswer) error
	Unserved(wire.Unserved) error // the models that it does not serve, replacing the hello's
	// OfferSpare offers spare work to the scheduler. A scheduler of an earlier protocol orders no steps.
	OfferSpare([]wire.SpareOffer) error
	EndSpare([]wire.SpareEnd) error
	// Renew sets the hello of later sessions. It does not affect an open one.
	Renew(wire.BackendHello) error
	// Renumber is Renew for a hello after which numbers of models that it has loaded nowhere may name others. A scheduler
	// that takes over is not obeyed in a session that began with an earlier hello: it may have them loaded.
	Renumber(wire.BackendHello) error
	Close() error
}

// Errors of links. Details are wrapped around them.
var (
	ErrUnavailable = errors.New("scheduler unavailable")
	ErrClosed      = errors.New("link closed")
	ErrSlowPeer    = errors.New("peer does not read fast enough")
	ErrQuiet       = errors.New("peer is silent")
)

// RefusedError is the scheduler's refusal of a session. Trying again cannot help if it is fatal.
type RefusedError struct {
	Fatal bool
	Text  string

	version uint16 // protocol version of the refusal
}

func (e *RefusedError) Error() string { return "the scheduler refused: " + e.Text }

// Limits and periods.
const (
	WriteQueueMax    = 16 << 20 // bytes waiting for a peer before it is cut off
	SessionsMax      = 10_000   // of one server
	QuietMax         = quietTicks * pingEvery
	quietTicksBefore = 50 // with a scheduler of the version before, which pings frontends once a second
	quietTicks       = 5  // leaves room for a lost packet and its retransmission after 200 ms
	pingEvery        = 100 * time.Millisecond
	writeMax         = 5 * time.Second // for data that a non-blocking write could not pass to the socket
	handshakeMax     = 5 * time.Second
	connectMax       = time.Second // less than the kernel's time to retransmit a lost first packet
	backoffMin       = 10 * time.Millisecond
	backoffMax       = 500 * time.Millisecond
	backoffShare     = 8                // attempts are an eighth of the outage apart, so the outage lasts at most that much longer
	sessionMin       = time.Second      // a shorter session does not end an outage
	refusedAgain     = 2 * time.Second  // wait after a refusal that a retry is unlikely to change
	dialMax          = 10 * time.Second // when the caller's context has no deadline
	bufferBytesKeep  = 256 << 10
)

// DialOptions locate the schedulers.
type DialOptions struct {
	Addr    string       // host:port of each scheduler of the cluster, separated by commas
	Token   string       // used when the hello names none
	TLS     *tls.Config  // nil: plain TCP
	Patient bool         // if no scheduler answers by ctx's deadline, keep trying until Close instead of failing
	Logger  *slog.Logger // nil: silent
	quiet   int32        // ticks of silence after which a scheduler counts as lost; 0: quietTicks
}

func (o *DialOptions) checkOptions() error {
	if o.Addr == "" {
		return errors.New("scheduler address is empty: want host:port")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return nil
}

func unavailableError(err error) error {
	if err == nil || errors.Is(err, ErrUnavailable) {
		return ErrUnavailable
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
