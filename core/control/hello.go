package control

import (
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"downbeat.dev/core/wire"
)

// readHello reads the hello, or refuses it.
func (c *session) readHello(r *wire.Reader) (wire.Frame, error) {
	// Version and token are read first, so that a stranger cannot make this process allocate a large frame.
	t, b, err := r.Peek(wire.HelloPeekBytes)
	if errors.Is(err, wire.ErrVersion) {
		return wire.Frame{}, c.refuseHello(true, err)
	}
	if plain := (tls.RecordHeaderError{}); errors.As(err, &plain) && plain.Conn != nil {
		c.conn = plain.Conn // without TLS, as the peer speaks
		return wire.Frame{}, c.refuseHello(true, errPlain)
	}
	if err != nil {
		return wire.Frame{}, fmt.Errorf("handshake: %w", err)
	}
	if t != wire.TypeFrontendHello && t != wire.TypeBackendHello && t != wire.TypeStandbyHello {
		return wire.Frame{}, c.refuseHello(true, fmt.Errorf("%w: the first frame is %v, want a hello", wire.ErrMalformed, t))
	}

	version, token, err := wire.PeekHello(b)
	if err != nil {
		return wire.Frame{}, c.refuseHello(true, err)
	}
	if version < wire.VersionMin || version > wire.Version {
		return wire.Frame{}, c.refuseHello(true, fmt.Errorf("%w: the hello says version %d, this is version %d and knows %d", wire.ErrVersion, version, wire.Version, wire.VersionMin))
	}
	c.version = version

	if err := c.s.admitToken(token); err != nil {
		return wire.Frame{}, c.refuseHello(true, err)
	}

	// Only now does the peer count as a session, and may its hello be large.
	if err := c.s.establishSession(c); err != nil {
		return wire.Frame{}, c.refuseHello(false, err)
	}
	f, err := r.Next()
	if err != nil {
		return f, fmt.Errorf("handshake: %w", err)
	}
	return f, nil
}

var errPlain = errors.New("the scheduler speaks TLS and the peer does not: give the peer the certificate of the scheduler's authority")

var errToken = errors.New("wrong token: give the peer the scheduler's token")

func (s *Server) admitToken(token string) error {
	if s.o.Token != "" && subtle.ConstantTimeCompare([]byte(token), []byte(s.o.Token)) != 1 {
		return errToken
	}
	return nil
}

// refuseHello sends the refusal and returns the reason.
func (c *session) refuseHello(fatal bool, why error) error {
	// A short limit: a stranger that does not read its refusal must not hold the connection open.
	c.conn.SetWriteDeadline(time.Now().Add(time.Second))
	no := wire.AppendRefusal(nil, wire.Refusal{Fatal: fatal, Text: why.Error()})

	// In the peer's version if it is known, so that the peer can read the reason.
	if c.version != 0 {
		no = wire.SetVersion(no, c.version)
	}
	c.conn.Write(no)
	return fmt.Errorf("%w: %w", errRefused, why)
}

var errRefused = errors.New("refused")

// dropHello refuses a hello that the engine did not accept.
func (c *session) dropHello(w *writer, why error) error {
	err := c.refuseHello(false, why)
	w.closeFor(err)
	<-w.done
	return err
}
