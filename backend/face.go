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

// Names under which this package shows what a program hands from one part to another, and need not look into.
type (
	// Node is the data plane, and DataPlane how it is opened.
	Node      = rdma.Node
	DataPlane = rdma.Config
	// LinkStats is what the kernel sees of the data plane's links.
	LinkStats = rdma.LinkStats
	// Hello is what the scheduler is told of the backend when a session opens.
	Hello = wire.BackendHello
	// Descriptor names a payload and where it lies.
	Descriptor = model.Descriptor
	// Profile is ℓ(b): how long batches take, by size.
	Profile = profile.Profile
)

const reasonCount = model.ReasonCount

// events is the backend as its link with the scheduler sees it (control.BackendEvents).
type events struct{ *Backend }

// Connection says where the scheduler is.
type Connection struct {
	Scheduler string      // host:port, several with commas between them, or an address within this process
	Token     string      // the secret that all parts share
	TLS       *tls.Config // for the session
	Patient   bool        // a scheduler that is not reached until the context ends is no error: it is tried on
	Logger    *slog.Logger
}

// Connect opens the session with the scheduler, once: from here on batches come. It tries until the session is open or ctx
// ends (ten seconds without a deadline). The caller must call close before Close.
func (b *Backend) Connect(ctx context.Context, c Connection) (close func() error, err error) {
	link, err := control.DialBackend(ctx, control.DialOptions{Addr: c.Scheduler, Token: c.Token, TLS: c.TLS, Patient: c.Patient, Logger: c.Logger}, b.Hello(), events{b})
	if err != nil {
		return nil, err
	}
	b.attach(link)
	return link.Close, nil
}
