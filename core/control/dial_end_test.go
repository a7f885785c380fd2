package control

import (
	"context"
	"errors"
	"testing"

	"downbeat.dev/core/wire"
)

// TestDialEndsWhileAHandshakeFails: the dialler's context may end at the moment when a scheduler closes the
// connection. The result is an error like any other.
func TestDialEndsWhileAHandshakeFails(t *testing.T) {
	ln, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	cancels := make(chan context.CancelFunc, 1)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			select {
			case cancel := <-cancels:
				go cancel()
			default: // one more attempt of the same call
			}
			conn.Close()
		}
	}()

	for range 300 {
		ctx, cancel := context.WithCancel(t.Context())
		cancels <- cancel
		if _, err := DialFrontend(ctx, DialOptions{Addr: ln.Addr().String()}, wire.FrontendHello{Name: "f"}, newCaller()); !errors.Is(err, ErrUnavailable) {
			t.Fatalf("a scheduler that closes every connection: %v, want %v", err, ErrUnavailable)
		}
		select {
		case <-cancels: // the attempt ended before it was accepted
		default:
		}
		cancel()
	}
}
