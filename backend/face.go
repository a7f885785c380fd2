package backend

import (
	"context"
	"crypto/tls"
	"log/slog"

	"downbeat.dev/core/control"
	"downbeat.dev/core/model"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// Names for types of other packages that a program passes from one part to another without looking inside.
type (
	// Node is the data plane, and DataPlane its configuration.
	Node      = rdma.Node
	DataPlane = rdma.Config
	// LinkStats is the kernel's view of the data plane's links.
	LinkStats = rdma.LinkStats
	// Hello is the backend's description, sent to the scheduler when a session opens.
	Hello = wire.BackendHello
	// Descriptor locates a payload.
	Descriptor = model.Descriptor
	// Profile is ℓ(b), the latency of batches by size.
	Profile = profile.Profile
)

const reasonCount = model.ReasonCount

// events implements control.BackendEvents: the backend as its link sees it.
type events struct{ *Backend }

// Connection locates the scheduler.
type Connection struct {
	Scheduler string      // host:port, several separated by commas, or an address within this process
	Token     string      // the secret that all parts share
	TLS       *tls.Config // for the session
	Patient   bool        // if no scheduler answers until the context ends, keep trying instead of failing
	Logger    *slog.Logger
}

// Connect opens the session with the scheduler; call it once. From here on batches arrive. It tries until the session
// is open or ctx ends (after ten seconds without a deadline). The caller must call close before Close.
func (b *Backend) Connect(ctx context.Context, c Connection) (close func() error, err error) {
	link, err := control.DialBackend(ctx, control.DialOptions{Addr: c.Scheduler, Token: c.Token, TLS: c.TLS, Patient: c.Patient, Logger: c.Logger}, b.Hello(), events{b})
	if err != nil {
		return nil, err
	}
	b.attach(link)
	return link.Close, nil
}
