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

// Options say how a Client reaches the scheduler and how backends reach it.
type Options struct {
	// Scheduler is host:port, of each scheduler of the cluster, separated by commas; or the address that a scheduler has
	// within this process.
	Scheduler string
	Token     string      // the secret that all parts share
	TLS       *tls.Config // for the session with the scheduler; nil: none. The data plane's is Data.TLS
	Name      string      // how the scheduler's log and metrics call this frontend
	Data      DataPlane   // where backends read inputs
	// Patient says that a scheduler which is not there after a second is no error: Dial returns, and the client goes on
	// looking for it until Close.
	Patient bool
	LiveMax int // requests at a time; more are rejected. 65,536 when 0
	// Grace is how long after its deadline an output is still waited for where the context has no
	// deadline. 20 ms when 0.
	Grace time.Duration
	// Margin is how much earlier than the deadline the scheduler is to aim, for the output's way back
	// and the caller's waking; at most a tenth of the budget. Measured when 0.
	Margin time.Duration
	// Reconnect is how long requests wait for a lost scheduler to come back, as long as they have
	// budget left; after it, and until it is back, they end at once with ErrUnavailable. 5 s when 0.
	Reconnect time.Duration
	// HoldBytes is from which size on a state of a sequence stays with the backend whose step left it, and is read by the next
	// step's from there; it is lost when the backend dies. 256 KiB when 0; negative: all states come here.
	HoldBytes int
	Logger    *slog.Logger
}

// Client is a frontend's end of the system. Its methods may be called from any goroutine.
type Client struct {
	o        Options
	log      *slog.Logger
	memory   memory
	node     *rdma.Node // memory's
	link     atomic.Pointer[linkBox]
	models   models
	pending  pending
	results  resultPool
	session  session
	commands commands
	classes  classes
	base     time.Time
	stats    counters
	margin   atomic.Int64 // ns; written by the sweep
	echo     atomic.Int64 // ns there and back, the median of the slowest peer; likewise
	left     atomic.Int64 // requests that no session has, as of the last look

	sequences sequences
	standbys  bool // there are several schedulers

	wake      chan struct{} // cap 1: the sweep has something to watch
	ready     chan struct{} // closed at the first announcement of models
	announced notice        // models, or that the scheduler was lost
	closing   chan struct{}
	once      sync.Once
	done      sync.WaitGroup
}

// linkBox makes a link storable: events may come before it was dialled.
type linkBox struct{ control.FrontendLink }

// session tells whether the scheduler can be asked, and which session it is.
type session struct {
	mu      sync.Mutex // guards up and fresh; the others are written under it
	up      bool
	fresh   bool          // models were announced since it came up
	open    atomic.Bool   // up and fresh
	epoch   atomic.Uint64 // counts the times that it opened
	changed atomic.Int64  // when it last opened or was lost, on the client's clock
}

// counters are what Stats reports; each is written by any goroutine.
type counters struct {
	requests, answers, outcomes, resubmits, strays atomic.Uint64
	statesHeld, statesFetched, statesLost          atomic.Uint64
}

// Stats is what a client counts since Dial.
type Stats struct {
	Live      int64  // requests under way
	Requests  uint64 // begun
	Answers   uint64 // ended with an output
	Outcomes  uint64 // ended without
	Resubmits uint64 // sent again after a session was lost or an input came late
	Strays    uint64 // answers to requests that had ended
	// Steps of sequences whose state stayed with its backend, and of these such whose state was fetched, or lost.
	StatesHeld, StatesFetched, StatesLost uint64
	Connected                             bool
	Data                                  DataStats
}

// Dial opens the data plane and the session with the scheduler. It tries until ctx ends, ten seconds
// if ctx has no deadline, and waits for the first announcement of models, at most a second: a
// scheduler may have none yet. ctx has no meaning after. The session is kept up until Close: when
// the scheduler restarts, the client reconnects and submits again what has no answer and still has
// budget.
func Dial(ctx context.Context, o Options) (*Client, error) {
	c := newClient(o)

	// Outputs come over the data plane, straight from backends; the scheduler only tells of those that got none.
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

	c.link.Store(&linkBox{link})
	c.done.Add(1)
	go c.sweepCalls()

	// The first catalogue is waited for, so that a caller may ask for a model at once; but not for long: a scheduler
	// without models sends none.
	select {
	case <-c.ready:
	case <-time.After(firstModels):
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("wait for models: %w", ctx.Err()), c.Close())
	}
	return c, nil
}

// How long Dial waits for the first announcement, and a patient client for its scheduler.
const (
	firstModels = time.Second
	patience    = time.Second
)

// dialScheduler opens the session.
func (c *Client) dialScheduler(ctx context.Context, hello wire.FrontendHello) (control.FrontendLink, error) {
	if c.o.Patient {
		// Only the first session is waited for: a patient link goes on by itself when this context ends.
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

// now is the client's clock: nanoseconds since Dial, never 0 after it.
func (c *Client) now() int64 { return int64(time.Since(c.base)) }

// closeMax is how long Close waits for callers to take notice.
const closeMax = 5 * time.Second

// Close ends the session and, once every Buffer is freed, the data plane. Requests under way end
// with an error that is both ErrCanceled and ErrClosed, later ones with ErrClosed. It waits for
// callers to take notice, 5 s at most; a second Close does nothing.
func (c *Client) Close() error {
	var err error

	c.once.Do(func() {
		close(c.closing)

		// The session ends first: no event comes after it.
		if link := c.link.Load(); link != nil {
			err = link.Close()
		}
		c.done.Wait()

		// Calls in Prepare hooks end when the caller's hook returns, which nothing here can hasten.
		for end := time.Now().Add(closeMax); c.pending.live.Load() > 0; time.Sleep(100 * time.Microsecond) {
			c.failCalls(func(*call) bool { return true }, model.Canceled, ErrClosed) // again: a call may be on its way to live
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

// Connected tells whether the scheduler can be asked now.
func (c *Client) Connected() bool { return c.session.open.Load() }

// Stats returns counts. It is not for the hot path.
func (c *Client) Stats() Stats {
	return Stats{Live: c.pending.live.Load(), Requests: c.stats.requests.Load(), Answers: c.stats.answers.Load(),
		Outcomes: c.stats.outcomes.Load(), Resubmits: c.stats.resubmits.Load(), Strays: c.stats.strays.Load(),
		StatesHeld: c.stats.statesHeld.Load(), StatesFetched: c.stats.statesFetched.Load(), StatesLost: c.stats.statesLost.Load(),
		Connected: c.Connected(), Data: dataStats(c.node.Stats())}
}
