package control

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/wire"
	"downbeat.dev/internal/tlstest"
)

// oneAttempt returns a context, and a log that ends it when it reports a failed attempt.
func oneAttempt(t *testing.T) (context.Context, *slog.Logger) {
	once, cancel := context.WithCancel(ctx(t))
	t.Cleanup(cancel)
	return once, slog.New(slog.NewTextHandler(onWrite(cancel), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func TestHandshakeRefusals(t *testing.T) {
	h := open(t, ServerOptions{Token: "secret"})
	_, err := DialFrontend(ctx(t), DialOptions{Addr: h.addr, Token: "guess"}, wire.FrontendHello{}, newCaller())
	var refused *RefusedError
	if !errors.As(err, &refused) || !refused.Fatal || !strings.Contains(err.Error(), "wrong token") {
		t.Errorf("wrong token: %v", err)
	}
	bad := backendHello("m")
	bad.Models[0].Profile = []time.Duration{5, 4}
	once, log := oneAttempt(t)
	if _, err = DialBackend(once, DialOptions{Addr: h.addr, Token: "secret", Logger: log}, bad, newRunner(nil)); err == nil || !strings.Contains(err.Error(), `model "m"`) {
		t.Errorf("profile that falls: %v", err)
	}
	if _, err = DialFrontend(ctx(t), DialOptions{}, wire.FrontendHello{}, newCaller()); err == nil || !strings.Contains(err.Error(), "addr") {
		t.Errorf("no address: %v, want an error that names it", err)
	}
	if _, err = DialFrontend(ctx(t), DialOptions{Addr: h.addr}, wire.FrontendHello{Name: strings.Repeat("x", 999)}, newCaller()); !errors.Is(err, wire.ErrLimit) {
		t.Errorf("long name: %v", err)
	}
}

func TestOtherVersionIsRefusedByName(t *testing.T) {
	h := open(t, ServerOptions{})
	b, _ := wire.AppendFrontendHello(nil, &wire.FrontendHello{Version: wire.Version})
	b[5] = wire.Version + 1
	got := converse(t, h.addr, b)
	if !strings.Contains(got, fmt.Sprintf("this is version %d", wire.Version)) {
		t.Errorf("answer %q", got)
	}
}

// converse sends bytes and returns the text of the refusal that comes back.
func converse(t *testing.T, addr string, b []byte) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	conn.Write(b)
	f, err := wire.NewReader(conn).Next()
	if err != nil {
		return err.Error()
	}
	m, err := wire.DecodeRefusal(f)
	if err != nil {
		t.Fatalf("%v: %v", f.Type, err)
	}
	return m.Text
}

func TestGarbageEndsOnlyItsOwnSession(t *testing.T) {
	h := open(t, ServerOptions{})
	c, a := newCaller(), &answered{n: map[uint64]int{}}
	f, _ := h.dialBoth(false, DialOptions{}, c, newRunner(a.add), backendHello("m"))
	for _, garbage := range []string{"", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("\xff", 4096), "\x00"} {
		conn, err := net.Dial("tcp", h.addr)
		if err != nil {
			t.Fatal(err)
		}
		conn.Write([]byte(garbage))
		conn.(*net.TCPConn).CloseWrite()
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		io.Copy(io.Discard, conn)
		conn.Close()
	}
	hello, _ := wire.AppendFrontendHello(nil, &wire.FrontendHello{Version: wire.Version})
	conn, err := net.Dial("tcp", h.addr)
	if err != nil {
		t.Fatal(err)
	}
	conn.Write(append(hello, wire.AppendDones(nil, []wire.Done{{Batch: 1}})...)) // a frontend does not report batches
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	io.Copy(io.Discard, conn) // ends when the session is closed
	conn.Close()
	c.until(t, "model ready", func() bool { return c.models["m"].Ready })
	f.Submit([]wire.Submit{{ID: 1, Model: c.models["m"].ID, Budget: 20e9}})
	waitFor(t, "an answer", func() bool { return a.total() == 1 })
}

func TestSessionsLimit(t *testing.T) {
	h := open(t, ServerOptions{SessionsMax: 2})
	var links []FrontendLink
	for range 2 {
		l, err := DialFrontend(ctx(t), DialOptions{Addr: h.addr}, wire.FrontendHello{}, newCaller())
		if err != nil {
			t.Fatal(err)
		}
		links = append(links, l)
	}
	once, log := oneAttempt(t)
	_, err := DialFrontend(once, DialOptions{Addr: h.addr, Logger: log}, wire.FrontendHello{}, newCaller())
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "2 sessions are open") {
		t.Errorf("third session: %v", err)
	}
	links[0].Close()
	l, err := DialFrontend(ctx(t), DialOptions{Addr: h.addr}, wire.FrontendHello{}, newCaller())
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	links[1].Close()
}

func TestPortInUse(t *testing.T) {
	ln, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, err = Listen(ln.Addr().String())
	if err == nil || !strings.Contains(err.Error(), "the port is in use") || !strings.Contains(err.Error(), ln.Addr().String()) {
		t.Errorf("second listener: %v", err)
	}
}

func TestTLS(t *testing.T) {
	both := tlstest.SelfSigned(t)
	h := open(t, ServerOptions{TLS: &tls.Config{Certificates: both.Certificates}})
	c, a := newCaller(), &answered{n: map[uint64]int{}}
	f, _ := h.dialBoth(false, DialOptions{TLS: &tls.Config{RootCAs: both.RootCAs}}, c, newRunner(a.add), backendHello("m"))
	c.until(t, "model ready", func() bool { return c.models["m"].Ready })
	f.Submit([]wire.Submit{{ID: 1, Model: c.models["m"].ID, Budget: 20e9}})
	waitFor(t, "an answer", func() bool { return a.total() == 1 })

	// A dial that is given up says why its latest attempt failed.
	once, log := oneAttempt(t)
	var stranger x509.UnknownAuthorityError
	if _, err := DialFrontend(once, DialOptions{Addr: h.addr, TLS: &tls.Config{}, Logger: log}, wire.FrontendHello{}, newCaller()); !errors.As(err, &stranger) {
		t.Errorf("an unknown certificate: %v", err)
	}
	var refused *RefusedError
	_, err := DialFrontend(ctx(t), DialOptions{Addr: h.addr}, wire.FrontendHello{}, newCaller())
	if !errors.As(err, &refused) || !refused.Fatal || !strings.Contains(err.Error(), "speaks TLS") {
		t.Errorf("without TLS: %v", err)
	}
}
