package control

import (
	"context"
	"errors"
	"testing"
	"time"

	"downbeat.dev/core/wire"
)

func TestLinksReconnectAfterARestart(t *testing.T) {
	ln, err := Listen(rareAddr)
	if err != nil {
		t.Fatal(err)
	}
	h := openOn(t, ln, ServerOptions{})
	c, a := newCaller(), &answered{n: map[uint64]int{}}
	f, _ := h.dialBoth(false, DialOptions{}, c, newRunner(a.add), backendHello("m"))
	c.until(t, "model ready", func() bool { return c.models["m"].Ready })
	h.close()
	c.until(t, "link down", func() bool { return c.downs == 1 })
	if err := f.Submit([]wire.Submit{{ID: 1}}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("submit while down: %v", err)
	}
	c.note(func() { clear(c.models) })
	if ln, err = Listen(h.addr); err != nil {
		t.Fatal(err)
	}
	h = openOn(t, ln, ServerOptions{})
	c.until(t, "link up, model ready", func() bool { return c.ups == 2 && c.models["m"].Ready })
	if err := f.Submit([]wire.Submit{{ID: 1, Model: c.models["m"].ID, Budget: 20e9}}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			t.Logf("%+v", h.e.Stats())
		}
	}()
	waitFor(t, "an answer", func() bool { return a.total() == 1 })
}

func TestDialGivesUpWithItsContext(t *testing.T) {
	ln, err := Listen(rareAddr)
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := DialFrontend(short, DialOptions{Addr: addr}, wire.FrontendHello{}, newCaller()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("nobody listens: %v", err)
	}
}

// TestPatientDialWaitsForTheScheduler shows that parts may start in any order, however long the first one waits. A
// refusal is still an error, and so is a caller that gives up.
func TestPatientDialWaitsForTheScheduler(t *testing.T) {
	ln, err := Listen(rareAddr)
	if err != nil {
		t.Fatal(err)
	}
	o := DialOptions{Addr: ln.Addr().String(), Token: "0123456789abcdef", Patient: true}
	ln.Close()
	dial := func(ctx context.Context, o DialOptions, c *caller) (FrontendLink, error) {
		ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		return DialFrontend(ctx, o, wire.FrontendHello{}, c)
	}
	c := newCaller()
	f, err := dial(ctx(t), o, c)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Submit([]wire.Submit{{ID: 1}}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("submit before the first session: %v", err)
	}
	if idle, err := dial(ctx(t), o, newCaller()); err != nil || idle.Close() != nil {
		t.Errorf("closed before the first session: %v", err)
	}
	gone, cancel := context.WithCancel(ctx(t))
	cancel()
	if _, err := dial(gone, o, newCaller()); !errors.Is(err, ErrUnavailable) && !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that gave up: %v", err)
	}
	if ln, err = Listen(o.Addr); err != nil {
		t.Fatal(err)
	}
	openOn(t, ln, ServerOptions{Token: o.Token})
	c.until(t, "link up", func() bool { return c.ups == 1 })
	o.Token = "another"
	var refused *RefusedError
	if _, err := DialFrontend(ctx(t), o, wire.FrontendHello{}, newCaller()); !errors.As(err, &refused) {
		t.Errorf("another token: got %v, want the refusal", err)
	}
}
