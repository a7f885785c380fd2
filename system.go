//go:build linux

package downbeat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"runtime/debug"
	"strconv"
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

// System holds the parts of a deployment that Start opened in this process.
type System struct {
	config Config
	token  string
	log    *slog.Logger
	lines  slog.Handler   // where the lines of all rooms go; nil: log is the caller's
	levels *levels.Levels // log level of each room; nil: log is the caller's
	access *slog.Logger   // of inference calls; nil: not logged
	failed chan error     // receives the error of the first part that ends by itself
	closes []func(context.Context) error

	process  *observe.Process // health, metrics and profiles of all parts
	engine   *engine.Engine   // nil if the scheduler runs elsewhere
	server   *control.Server  // set together with engine
	backend  *backend.Service
	learners []*learn.Live
	client   *frontend.Client
	entrance entrance // of the gateway
	gateway  *gateway.Gateway

	applications *app.Set // nil: there are none, or no gateway
}

// Start opens the parts in c.Roles, the inner ones first, and returns once they serve. ctx bounds only the start. An
// error names the knob or the part; nothing is left running then. The caller must Close the system.
//
// The threads of a scheduler and of executors wait in the kernel, so Start raises GOMAXPROCS by their number until
// Close (docs/decisions/0027).
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

// newSystem checks the configuration and prepares what every part needs: the secret and the log.
func newSystem(c Config) (*System, error) {
	s := &System{config: c, failed: make(chan error, 1), process: observe.NewProcess(), log: slog.New(slog.DiscardHandler)}

	s.config.Version = cmp.Or(c.Version, buildVersion())
	if c.Roles == 0 {
		return s, errors.New("config: roles: 0 is not allowed: want one part at least, such as downbeat.Scheduler")
	}

	// A gateway sends its requests through a client.
	if c.Roles&Gateway != 0 {
		s.config.Roles |= Client
	}

	// Start owns the store from here: Close closes it even if a later step fails.
	if c.Election != nil {
		s.onClose(c.Election.Close)
	}

	// An empty Listen is valid here: no other process can reach this scheduler. The knobs' own check requires an
	// address.
	knobs := c.Config
	knobs.Listen = cmp.Or(knobs.Listen, deploy.Default().Listen)
	err := knobs.Check()
	if err != nil {
		return s, err
	}

	if err := s.checkData(); err != nil {
		return s, err
	}

	if s.token, err = c.Token(); err != nil {
		return s, err
	}
	return s, s.openLog()
}

// checkData refuses a data port that two parts of this process would need.
func (s *System) checkData() error {
	_, port, err := net.SplitHostPort(s.config.Data)
	if number, _ := strconv.Atoi(port); err != nil || number == 0 || s.config.Roles&Backend == 0 || s.config.Roles&Client == 0 {
		return nil
	}
	return fmt.Errorf("config: data: %q is not allowed: a backend and a client in one process listen on a port each: want port 0", s.config.Data)
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

	// The gateway's log settings extension can change levels while the system runs.
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return fmt.Errorf("log_level: %w", err)
	}
	s.levels = levels.New(level)
	if err := s.levels.SetRooms(c.LogRooms); err != nil {
		return fmt.Errorf("log_rooms: %w", err)
	}

	// The levels of the rooms filter lines, so the handler behind them accepts all.
	s.lines = loglimit.New(slog.NewTextHandler(c.Log, &slog.HandlerOptions{Level: slog.Level(math.MinInt)}))
	s.log = s.logOf("")
	if c.Protocol.AccessLog {
		s.access = slog.New(slog.NewTextHandler(c.Log, nil)) // not rate limited: every call has its line
	}
	return nil
}

// logOf returns the logger of a room.
func (s *System) logOf(room string) *slog.Logger {
	if s.levels == nil {
		return s.log
	}
	return slog.New(s.levels.Handler(room, s.lines))
}

// openParts opens the parts in the order of their dependencies.
func (s *System) openParts(ctx context.Context) error {
	s.warnExposed()
	if err := s.openMetrics(); err != nil {
		return err
	}
	if s.config.Roles&Gateway != 0 {
		if err := s.openEntrance(); err != nil {
			return err
		}
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

	// All parts are open: from now on probes may find the system ready.
	s.setHealth()
	return nil
}

// warnExposed logs the listeners that other hosts can reach without encryption.
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

// DrainMax is the time that Close gives accepted requests to finish.
const DrainMax = 5 * time.Second

// Close ends the parts, the last one first. Requests that this process's backend has accepted may finish within
// DrainMax. A second Close does nothing. Close must not be called concurrently.
func (s *System) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), DrainMax)
	defer cancel()
	var err error

	// Later parts use earlier ones, so they close first.
	for i := len(s.closes) - 1; i >= 0; i-- {
		err = errors.Join(err, s.closes[i](ctx))
	}
	s.closes = nil
	return err
}

func (s *System) onClose(f func() error) {
	s.closes = append(s.closes, func(context.Context) error { return f() })
}

// fail records that a part ended by itself; Wait returns the error.
func (s *System) fail(err error) {
	// Only the first failure counts: later ones follow from it.
	select {
	case s.failed <- err:
	default:
	}
}

// Wait returns nil when ctx ends, or the error of a part that ended by itself, such as a listener.
func (s *System) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.failed:
		return err
	}
}

// Client returns the client of this process; nil if there is none. Close closes it.
func (s *System) Client() *frontend.Client { return s.client }

// BatchSizes returns how many batches of each size this process's scheduler has sent for a model, all versions
// together: element b counts the batches of b requests. It returns nil if there were none or the scheduler runs
// elsewhere. It is not for the hot path.
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

// Backend returns the backend of this process; nil if there is none.
func (s *System) Backend() *backend.Service { return s.backend }

// Gateway returns the gateway of this process; nil if there is none.
func (s *System) Gateway() *gateway.Gateway { return s.gateway }

// Applications returns the applications of the model repository, which run with the gateway; nil if there are none.
func (s *System) Applications() *app.Set { return s.applications }

// Config returns the configuration in force. Listen, HTTP, GRPC and Metrics hold the actual addresses.
func (s *System) Config() Config { return s.config }

// Log returns the logger of the parts.
func (s *System) Log() *slog.Logger { return s.log }

// buildVersion returns the version in the program's build information.
func buildVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "devel"
}
