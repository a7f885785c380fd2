// Package control carries wire messages between the scheduler and its frontends and backends: over
// TCP (one listener, handshake with version and token, coalesced writes, pings, reconnect with
// backoff) or within one process (no encoding). It decides nothing and keeps no requests: a link
// that breaks forgets what was under way, and both sides start anew.
//
// # Sessions
//
// The client's first frame is its hello: protocol version and token lead it, so that the scheduler
// refuses a stranger before it reads more. The answer is one Welcome or one Refusal. After that
// either side sends what it has at any time. The scheduler pings and the peer answers, ten times a
// second; whoever hears nothing for QuietMax gives the connection up.
//
// # Concurrency
//
// Links may be used from any goroutine. Events come one at a time per link, from one goroutine of
// that link; an event may call the link, but not Close, which returns after the last event.
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

// FrontendEvents is what a frontend is told. Calls come from one goroutine and must not block;
// slices are valid during the call.
type FrontendEvents interface {
	Models([]model.Info)
	Outcomes([]wire.Outcome)
	Answers([]wire.ModelAnswer)
	Link(up bool, err error) // the session opened, or was lost (reconnecting by itself)
}

// FrontendLink is a frontend's session with the scheduler. Safe for concurrent use; a call on a
// lost link returns ErrUnavailable at once. Requests submitted on a session that is lost end with
// it: no outcome follows, the frontend resubmits or gives up.
type FrontendLink interface {
	Submit([]wire.Submit) error
	Cancel(wire.Cancel) error
	Command(wire.ModelCommand) error // ends with an answer, or with the session
	Close() error
}

// BackendEvents is what a backend is told, under the same rules.
type BackendEvents interface {
	Peers([]wire.Peer)
	Execute([]wire.Execute)
	Place([]wire.Placement)
	Command([]wire.ModelCommand)
	Spare([]wire.SpareStart) // each is answered by one EndSpare
	Link(up bool, err error)
}

// BackendLink is a backend's session with the scheduler. Batches of a session that is lost are
// given to other backends; Done on a later session does not know them.
type BackendLink interface {
	Done([]wire.Done) error
	Offer([]wire.Loadable) error         // models that the backend can load, new or changed since its hello
	Report([]wire.PlacementReport) error // how models stand on its GPUs, at each change
	Answer(wire.ModelAnswer) error
	Unserved(wire.Unserved) error // the models that it does not serve, instead of the hello's
	// OfferSpare makes spare work known to the scheduler; one of an earlier protocol orders no steps.
	OfferSpare([]wire.SpareOffer) error
	EndSpare([]wire.SpareEnd) error
	// Renew says what hello later sessions open with. A session that is open does not notice.
	Renew(wire.BackendHello) error
	Close() error
}

// Errors of links. Details are wrapped around them.
var (
	ErrUnavailable = errors.New("scheduler unavailable")
	ErrClosed      = errors.New("link closed")
	ErrSlowPeer    = errors.New("peer does not read fast enough")
	ErrQuiet       = errors.New("peer is silent")
)

// RefusedError is the scheduler's no. A fatal one cannot be mended by trying again.
type RefusedError struct {
	Fatal bool
	Text  string

	version uint16 // of the protocol that it was said in
}

func (e *RefusedError) Error() string { return "the scheduler refused: " + e.Text }

// Limits and periods.
const (
	WriteQueueMax    = 16 << 20 // bytes waiting for a peer before it is cut off
	SessionsMax      = 10_000   // of one server
	QuietMax         = quietTicks * pingEvery
	quietTicksBefore = 50 // with a scheduler of the version before, which pings frontends once a second
	quietTicks       = 5  // a lost packet and its retransmission, after 200 ms, fit in
	pingEvery        = 100 * time.Millisecond
	writeMax         = 5 * time.Second // for what one write could not pass to the socket at once
	handshakeMax     = 5 * time.Second
	connectMax       = time.Second // after which the kernel would send a lost first packet again
	backoffMin       = 10 * time.Millisecond
	backoffMax       = 500 * time.Millisecond
	backoffShare     = 8                // attempts are an eighth of the outage apart: it lasts that much longer at most
	sessionMin       = time.Second      // a session that lasted less did not end an outage
	refusedAgain     = 2 * time.Second  // after a refusal that a retry is not likely to change
	dialMax          = 10 * time.Second // when the caller's context has no deadline
	bufferBytesKeep  = 256 << 10
)

// DialOptions say where the schedulers are.
type DialOptions struct {
	Addr    string       // host:port, of each scheduler of the cluster, separated by commas
	Token   string       // used when the hello names none
	TLS     *tls.Config  // nil: plain TCP
	Patient bool         // a scheduler that is not reached until ctx's deadline is no error: it is tried on until Close
	Logger  *slog.Logger // nil: silent
	quiet   int32        // ticks of silence before a scheduler is given up; 0: quietTicks
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
