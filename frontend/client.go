package frontend

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/core/control"
	"downbeat.dev/core/limits"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// Options configure a Client.
type Options struct {
	// Scheduler is host:port of each scheduler of the cluster, separated by commas; or the address of a scheduler in
	// this process.
	Scheduler string
	Token     string      // the secret that all parts share
	TLS       *tls.Config // for the session with the scheduler; nil: none. The data plane has its own, Data.TLS
	Name      string      // this frontend's name in the scheduler's log and metrics
	Data      DataPlane   // the data plane, over which backends read inputs
	// Patient makes Dial return after a second without a scheduler; the client keeps looking for one until Close.
	Patient bool
	LiveMax int // the most requests at a time; 0: 65,536. More are rejected
	// Grace is how long after its deadline a request still waits for an output, if the context has no deadline. 0: 20
	// ms.
	Grace time.Duration
	// Margin is how much earlier than the deadline the scheduler should aim, for the output's way back and the
	// caller's waking; at most a tenth of the budget. 0: measured.
	Margin time.Duration
	// Reconnect is how long requests with budget left wait for a lost scheduler to return. After that, requests end
	// at once with ErrUnavailable until it is back. 0: 5 s.
	Reconnect time.Duration
	// HoldBytes is the size from which a sequence's state stays on the backend that computed it, for the next step to
	// read there; it is lost if the backend dies. 0: 256 KiB; negative: all states are sent to the client.
	HoldBytes int
	Logger    *slog.Logger
}

// Client sends requests to the scheduler and receives their results. Its methods may be called from any goroutine.
type Client struct {
	o        Options
	log      *slog.Logger
	memory   memory
	node     *rdma.Node // owned by memory
	link     atomic.Pointer[linkBox]
	models   models
	pending  pending
	results  resultPool
	session  session
	commands commands
	classes  classes
	hooks    hooks
	base     time.Time
	stats    counters
	margin   atomic.Int64 // ns; written by the sweep
	echo     atomic.Int64 // median round trip to the slowest peer, ns; likewise
	left     atomic.Int64 // requests without a session, at the last look

	sequences sequences
	standbys  bool // there are several schedulers

	wake      chan struct{} // cap 1: the sweep has something to watch
	ready     chan struct{} // closed at the first announcement of models
	announced notice        // closed on an announcement of models, or when the scheduler is lost
	closing   chan struct{}
	once      sync.Once
	done      sync.WaitGroup
}

// linkBox makes a link storable: events may come before the dial has returned.
type linkBox struct {
	control.FrontendLink
	sessions interface{ Session() control.Submitter } // nil: the link has one session all its life
}

// session returns what sends in the present session; nil: there is none.
func (l *linkBox) session() control.Submitter {
	if l.sessions == nil {
		return l.FrontendLink
	}
	return l.sessions.Session()
}

// session is the state of the session with the scheduler.
type session struct {
	mu      sync.Mutex // guards up and fresh; the other fields are written under it
	up      bool
	fresh   bool          // models were announced since it opened
	open    atomic.Bool   // up and fresh
	epoch   atomic.Uint64 // number of times that it opened
	changed atomic.Int64  // when it last opened or was lost, on the client's clock
}

// counters are the counts that Stats returns; any goroutine may write them.
type counters struct {
	requests, answers, outcomes, resubmits, strays atomic.Uint64
	statesHeld, statesFetched, statesLost          atomic.Uint64
}

// Stats counts events since Dial.
type Stats struct {
	Live      int64  // requests in progress
	Requests  uint64 // started
	Answers   uint64 // ended with an output
	Outcomes  uint64 // ended without an output
	Resubmits uint64 // sent again after a session was lost or because an input was late
	Strays    uint64 // answers to requests that had already ended
	// Steps of sequences whose state stayed on its backend; those whose state was then fetched, or lost.
	StatesHeld, StatesFetched, StatesLost uint64
	Connected                             bool
	Data                                  DataStats
}

// Dial opens the data plane and the session with the scheduler. It tries until ctx ends, or for ten seconds if ctx
// has no deadline. Then it waits at most a second for the first announcement of models, since a scheduler may have
// none yet. ctx bounds only Dial. The session is maintained until Close: when the scheduler restarts, the client
// reconnects and resubmits unanswered requests that still have budget.
func Dial(ctx context.Context, o Options) (*Client, error) {
	c := newClient(o)

	// Outputs arrive over the data plane, directly from backends; the scheduler only reports requests without one.
	node, err := c.o.openNode(c.receiveResult)
	if err != nil {
		return nil, fmt.Errorf("open data plane: %w", err)
	}
	c.node, c.memory.node = node, node

	// The client itself is the first user of the data plane's memory.
	c.memory.users.Store(1)

	hello := wire.FrontendHello{Version: wire.Version, Name: c.o.Name, Token: c.o.Token, DataAddr: node.Addr(), Window: c.pending.idWindow()}
	link, err := c.dialScheduler(ctx, hello)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to scheduler: %w", err), c.memory.dropUser())
	}

	sessions, _ := link.(interface{ Session() control.Submitter })
	c.link.Store(&linkBox{link, sessions})
	c.done.Add(1)
	go c.sweepCalls()

	// Wait for the first catalogue, so that a caller can request a model at once; but not for long, as a scheduler
	// without models sends none.
	select {
	case <-c.ready:
	case <-time.After(firstModels):
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("wait for models: %w", ctx.Err()), c.Close())
	}
	return c, nil
}

// How long Dial waits for the first announcement, and a patient Dial for the scheduler.
const (
	firstModels = time.Second
	patience    = time.Second
)

// dialScheduler opens the session.
func (c *Client) dialScheduler(ctx context.Context, hello wire.FrontendHello) (control.FrontendLink, error) {
	if c.o.Patient {
		// Only the first session is waited for: a patient link continues by itself when this context ends.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	d := control.DialOptions{Addr: c.o.Scheduler, Token: c.o.Token, TLS: c.o.TLS, Patient: c.o.Patient, Logger: c.log}
	return control.DialFrontend(ctx, d, hello, events{c})
}

func newClient(o Options) *Client {
	if o.LiveMax <= 0 {
		o.LiveMax = 1 << 16
	}
	if o.Grace <= 0 {
		o.Grace = limits.AnswerGrace
	}
	if o.Reconnect <= 0 {
		o.Reconnect = 5 * time.Second
	}
	if o.HoldBytes == 0 {
		o.HoldBytes = stateBytes
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}

	c := &Client{o: o, log: o.Logger, base: time.Now(), standbys: strings.Contains(o.Scheduler, ","), wake: make(chan struct{}, 1),
		ready: make(chan struct{}), closing: make(chan struct{})}

	c.margin.Store(max(int64(o.Margin), int64(limits.ReturnLeast)))
	c.pending.init(min(o.LiveMax, liveMost))
	return c
}

// now returns the client's clock: nanoseconds since Dial, never 0.
func (c *Client) now() int64 { return int64(time.Since(c.base)) }

// closeMax is how long Close waits for its callers to return.
const closeMax = 5 * time.Second

// Close ends the session and, once every Buffer is freed, the data plane. Requests in progress end with an error that
// is both ErrCanceled and ErrClosed, later ones with ErrClosed. Close waits for these calls to return, at most 5 s. A
// second Close does nothing.
func (c *Client) Close() error {
	var err error

	c.once.Do(func() {
		close(c.closing)

		// The session ends first: no event follows.
		if link := c.link.Load(); link != nil {
			err = link.Close()
		}
		c.done.Wait()

		// Calls in Prepare hooks end when the hook returns, which cannot be hastened.
		for end := time.Now().Add(closeMax); c.pending.live.Load() > 0; time.Sleep(100 * time.Microsecond) {
			c.failCalls(func(*call) bool { return true }, model.Canceled, ErrClosed) // repeated: a call may just be becoming live
			if time.Now().After(end) {
				err = errors.Join(err, fmt.Errorf("%d requests are still in their Prepare hooks", c.pending.live.Load()))
				break
			}
		}

		err = errors.Join(err, c.memory.dropUser())
	})
	return err
}

func (c *Client) closed() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

// Connected reports whether the session with the scheduler is open.
func (c *Client) Connected() bool { return c.session.open.Load() }

// Stats returns the counts. It is not for the hot path.
func (c *Client) Stats() Stats {
	return Stats{Live: c.pending.live.Load(), Requests: c.stats.requests.Load(), Answers: c.stats.answers.Load(),
		Outcomes: c.stats.outcomes.Load(), Resubmits: c.stats.resubmits.Load(), Strays: c.stats.strays.Load(),
		StatesHeld: c.stats.statesHeld.Load(), StatesFetched: c.stats.statesFetched.Load(), StatesLost: c.stats.statesLost.Load(),
		Connected: c.Connected(), Data: dataStats(c.node.Stats())}
}
