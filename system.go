//go:build linux

package downbeat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"strings"
	"time"

	"downbeat.dev/backend"
	"downbeat.dev/backend/learn"
	"downbeat.dev/core/control"
	"downbeat.dev/core/engine"
	"downbeat.dev/core/observe"
	"downbeat.dev/core/observe/levels"
	"downbeat.dev/deploy"
	"downbeat.dev/deploy/loglimit"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/app"
	"downbeat.dev/frontend/gateway"
)

// System is what Start started: the parts of a deployment that run in this process.
type System struct {
	config Config
	token  string
	log    *slog.Logger
	lines  slog.Handler   // what all rooms' lines are written to; nil: log is the caller's
	levels *levels.Levels // of the rooms; nil: log is the caller's
	access *slog.Logger   // of inference calls; nil: they have no log
	failed chan error     // the first part that ends by itself
	closes []func(context.Context) error

	process  *observe.Process // what all parts tell of themselves
	engine   *engine.Engine   // nil: the scheduler is elsewhere
	server   *control.Server  // with engine
	backend  *backend.Service
	learners []*learn.Live
	client   *frontend.Client
	gateway  *gateway.Gateway

	applications *app.Set // nil: there are none, or no gateway
}

// Start opens the parts that c.Roles names, the inner ones first, and returns once they serve. ctx ends what Start waits
// for; afterwards it has no meaning. An error names the knob or the part, and leaves nothing running. The caller must
// Close the system.
//
// Threads of a scheduler and of executors wait in the kernel, so Start raises GOMAXPROCS by their number until Close
// (docs/decisions/0027).
func Start(ctx context.Context, c Config) (*System, error) {
	s, err := newSystem(c)
	if err == nil {
		err = s.openParts(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// newSystem reads what every part needs: the secret, and where the log goes.
func newSystem(c Config) (*System, error) {
	s := &System{config: c, failed: make(chan error, 1), process: observe.NewProcess(), log: slog.New(slog.DiscardHandler)}

	s.config.Version = cmp.Or(c.Version, buildVersion())
	if c.Roles == 0 {
		return s, errors.New("config: roles: 0 is not allowed: want one part at least, such as downbeat.Scheduler")
	}

	// A gateway asks through a client.
	if c.Roles&Gateway != 0 {
		s.config.Roles |= Client
	}

	// Taken over first: whatever fails from here on, Close closes it.
	if c.Election != nil {
		s.onClose(c.Election.Close)
	}

	// A scheduler that no other process can reach listens nowhere; all else is as the knobs' rules say.
	knobs := c.Config
	knobs.Listen = cmp.Or(knobs.Listen, deploy.Default().Listen)
	err := knobs.Check()
	if err != nil {
		return s, err
	}

	if s.token, err = c.Token(); err != nil {
		return s, err
	}
	return s, s.openLog()
}

func (s *System) openLog() error {
	c := &s.config
	if c.Logger != nil {
		s.log = c.Logger
		return nil
	}
	if c.Log == nil {
		return nil
	}

	// Levels can be changed while the system runs, by the log settings extension.
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return fmt.Errorf("log_level: %w", err)
	}
	s.levels = levels.New(level)
	if err := s.levels.SetRooms(c.LogRooms); err != nil {
		return fmt.Errorf("log_rooms: %w", err)
	}

	// Rooms decide what is written: behind them everything is.
	s.lines = loglimit.New(slog.NewTextHandler(c.Log, &slog.HandlerOptions{Level: slog.Level(math.MinInt)}))
	s.log = s.logOf("")
	if c.Protocol.AccessLog {
		s.access = slog.New(slog.NewTextHandler(c.Log, nil)) // not limited: every call has its line
	}
	return nil
}

// logOf is the log of a room's lines.
func (s *System) logOf(room string) *slog.Logger {
	if s.levels == nil {
		return s.log
	}
	return slog.New(s.levels.Handler(room, s.lines))
}

// openParts opens the parts in the order in which they need each other.
func (s *System) openParts(ctx context.Context) error {
	s.warnExposed()
	if err := s.openMetrics(); err != nil {
		return err
	}

	for _, part := range []struct {
		role Role
		open func(context.Context) error
	}{{Scheduler, s.openScheduler}, {Backend, s.openBackend}, {Client, s.openClient}, {Gateway, s.openGateway}} {
		if s.config.Roles&part.role == 0 {
			continue
		}
		if err := part.open(ctx); err != nil {
			return err
		}
	}

	// The parts are open: probes may find the system ready from now on.
	s.setHealth()
	return nil
}

// warnExposed says which listeners other hosts can reach where nothing is encrypted.
func (s *System) warnExposed() {
	c := &s.config
	var fields []string
	if c.Roles&Scheduler != 0 {
		fields = append(fields, "listen")
	}
	if c.Roles&Gateway != 0 {
		fields = append(fields, "http", "grpc")
	}
	if c.Roles&(Backend|Client) != 0 {
		fields = append(fields, "data")
	}

	if open := c.Exposed(fields, c.Metrics); len(open) > 0 && c.TLS == "" {
		s.log.Warn("reachable from other hosts without tls: secret and tensors can be read on the way", "listeners", strings.Join(open, " "))
	}
}

// DrainMax is how long Close lets accepted requests finish.
const DrainMax = 5 * time.Second

// Close ends the parts, the last first. Requests that a backend of this process has accepted may finish, for DrainMax at
// most. A second Close does nothing. Close must not be called by several goroutines at a time.
func (s *System) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), DrainMax)
	defer cancel()
	var err error

	// The last first: what was opened later uses what was there.
	for i := len(s.closes) - 1; i >= 0; i-- {
		err = errors.Join(err, s.closes[i](ctx))
	}
	s.closes = nil
	return err
}

func (s *System) onClose(f func() error) {
	s.closes = append(s.closes, func(context.Context) error { return f() })
}

// fail notes that a part ended by itself; Wait returns it.
func (s *System) fail(err error) {
	// The first failure is the cause: later ones follow from it.
	select {
	case s.failed <- err:
	default:
	}
}

// Wait returns nil when ctx ends, or the error of a part that ended by itself, as a listener may.
func (s *System) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.failed:
		return err
	}
}

// Client returns the client of this process, which Close closes; nil: none runs here.
func (s *System) Client() *frontend.Client { return s.client }

// BatchSizes tells how many batches of each size the scheduler of this process has ordered of a model: of b requests the
// number at b, of all versions together. Nil: none was ordered, or the scheduler is elsewhere. It is not for the hot path.
func (s *System) BatchSizes(model string) (sizes []uint64) {
	if s.engine == nil {
		return nil
	}

	for _, m := range s.engine.Stats().Models {
		if m.Name != model {
			continue
		}
		sizes = append(sizes, make([]uint64, max(0, len(m.Sizes)-len(sizes)))...)
		for b, n := range m.Sizes {
			sizes[b] += n
		}
	}
	return sizes
}

// Backend returns the backend of this process; nil: none runs here.
func (s *System) Backend() *backend.Service { return s.backend }

// Gateway returns the gateway of this process; nil: none runs here.
func (s *System) Gateway() *gateway.Gateway { return s.gateway }

// Applications returns those of the model repository, which run with the gateway; nil: there are none.
func (s *System) Applications() *app.Set { return s.applications }

// Config returns the configuration in force: Listen, HTTP, GRPC and Metrics hold the addresses that are listened on.
func (s *System) Config() Config { return s.config }

// Log returns where the parts log to.
func (s *System) Log() *slog.Logger { return s.log }

// buildVersion is what the module system knows of this program.
func buildVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "devel"
}
