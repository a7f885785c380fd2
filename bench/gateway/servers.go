package gateway

import (
	"context"
	"net"
	"sync"
)

// running are the servers of a run.
type running struct {
	cancels []context.CancelFunc
	wait    sync.WaitGroup
}

// servePair starts a pair of servers on loopback and returns their addresses.
func (r *running) servePair(f func(ctx context.Context, rest, rpc net.Listener) error) (rest, rpc string, err error) {
	a, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", err
	}

	b, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		a.Close()
		return "", "", err
	}

	ctx, cancel := context.WithCancel(context.Background())
	r.cancels = append(r.cancels, cancel)
	r.wait.Go(func() { _ = f(ctx, a, b) }) // a server that cannot serve shows as callers' errors
	return a.Addr().String(), b.Addr().String(), nil
}

// stopAll stops all servers and waits for them.
func (r *running) stopAll() {
	for _, cancel := range r.cancels {
		cancel()
	}
	r.wait.Wait()
}
