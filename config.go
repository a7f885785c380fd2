//go:build linux

package downbeat

import (
	"io"
	"log/slog"

	"downbeat.dev/backend"
	"downbeat.dev/core/lead"
	"downbeat.dev/deploy"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/app"
	"downbeat.dev/frontend/gateway"
)

// Role is a set of the parts of a deployment.
type Role uint8

// The parts. A Gateway has a Client.
const (
	Scheduler Role = 1 << iota
	Backend
	Client
	Gateway
)

// ElectionStore is where schedulers agree on who leads; packages core/lead/etcd, hostfile and kubernetes open one.
type ElectionStore = lead.Store

// Config says what of a deployment runs in this process, and how. Default and Load make one.
type Config struct {
	// The knobs of a deployment, with the names that its YAML file and the flags of command downbeat have.
	deploy.Config

	Roles Role // what runs here

	// Patient parts start although their scheduler is not there yet, and connect when it comes. Without it Start
	// returns an error ten seconds later.
	Patient bool

	// Metrics is the address on which the process tells of its health, its metrics and its profiles. Empty: on none but
	// the gateway's.
	Metrics string

	// FreePorts lets the gateway listen on free ports where the default ones are in use.
	FreePorts bool

	// Log gets a line of text for each event from LogLevel on; nil: there are none. Logger, if it is set, takes its place,
	// and its level is its owner's.
	Log    io.Writer
	Logger *slog.Logger

	// Version is what the gateway reports; that of the program's build when empty.
	Version string

	// Election is where the schedulers of a cluster agree on who leads; nil: this one leads. The caller opens it with one
	// of the packages in core/lead; Start takes it over and Close closes it. (Cluster.Election is what command downbeat opens it from.)
	Election ElectionStore

	// Hooks are the Go functions that the stages of applications may call, beside those of frontend/app; the gateway runs
	// them.
	Hooks map[string]app.NewHook
	// SessionTrial runs sessions in virtual time before one more is admitted; core/sim.Trial is one. Nil: their demand decides.
	SessionTrial app.Trial
	// DeviceMemory opens device memory that the gateway's clients register with Protocol.ClientSHM; nil: they are refused. It stays
	// the caller's, to be closed after the system.
	DeviceMemory gateway.DeviceMemory
	// TuneBackend and TuneClient may set what no knob does, before the part starts; nil: nothing.
	TuneBackend func(*backend.Options)
	TuneClient  func(*frontend.Options)
}

// Default returns the configuration of a scheduler, a backend that serves the repository ./models, and a client. No
// other process can reach them.
func Default() Config {
	c := Config{Config: deploy.Default(), Roles: Scheduler | Backend | Client}
	c.Listen = ""
	return c
}

// Load is Default with a YAML file's knobs over it. A scheduler listens where the file says, or on the default address.
func Load(path string) (Config, error) {
	c := Default()
	var err error

	c.Config, err = deploy.Load(path)
	return c, err
}
