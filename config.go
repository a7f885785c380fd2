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

// Role is a set of parts of a deployment.
type Role uint8

// The parts. A Gateway has a Client.
const (
	Scheduler Role = 1 << iota
	Backend
	Client
	Gateway
)

// ElectionStore is where schedulers hold their election. Packages core/lead/etcd, hostfile and kubernetes open one.
type ElectionStore = lead.Store

// Config selects the parts of a deployment that run in this process and configures them. Default and Load return one.
type Config struct {
	// The knobs of a deployment, under the names that its YAML file and the flags of command downbeat use.
	deploy.Config

	Roles Role // the parts to run

	// Patient parts start although their scheduler is not there yet, and connect when it comes. Otherwise Start fails
	// after ten seconds without a scheduler.
	Patient bool

	// Metrics is the address that serves health, metrics and profiles. If it is empty, only the gateway serves them.
	Metrics string

	// FreePorts lets the gateway fall back to free ports if its default ports are in use.
	FreePorts bool

	// Log receives one line of text per event of LogLevel or above; nil discards them. Logger, if set, replaces Log,
	// and its owner sets the level.
	Log    io.Writer
	Logger *slog.Logger

	// Version is the version that the gateway reports; if empty, the version in the program's build information.
	Version string

	// Election is where the schedulers of a cluster elect a leader; nil: this scheduler leads. The caller opens it
	// with one of the packages in core/lead; Start takes ownership and Close closes it. Command downbeat opens it
	// from Cluster.Election.
	Election ElectionStore

	// Hooks are Go functions that stages of applications may call, in addition to those of frontend/app. The gateway
	// runs them.
	Hooks map[string]app.NewHook

	// SessionTrial checks in virtual time whether one more session fits; core/sim.Trial implements it. If it is nil,
	// admission compares demand with capacity.
	SessionTrial app.Trial

	// DeviceMemory opens device memory that the gateway's clients register with Protocol.ClientSHM; nil: such
	// requests are refused. The caller owns it and closes it after the system.
	DeviceMemory gateway.DeviceMemory

	// TuneBackend and TuneClient, if set, adjust options that no knob covers, before the part starts.
	TuneBackend func(*backend.Options)
	TuneClient  func(*frontend.Options)
}

// Default returns the configuration of a scheduler, a backend that serves the repository ./models, and a client, in
// one process that others cannot reach.
func Default() Config {
	c := Config{Config: deploy.Default(), Roles: Scheduler | Backend | Client}
	c.Listen = ""
	return c
}

// Load returns Default with a YAML file's knobs applied. A scheduler listens on the file's address, or on the default
// one.
func Load(path string) (Config, error) {
	c := Default()
	var err error

	c.Config, err = deploy.Load(path)
	return c, err
}
