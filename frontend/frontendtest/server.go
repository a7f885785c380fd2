//go:build linux

package frontendtest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"downbeat.dev/backend"
	"downbeat.dev/backend/device"
	"downbeat.dev/core/control"
	"downbeat.dev/core/engine"
	"downbeat.dev/frontend"
	"downbeat.dev/rdma"
)

// Server is a scheduler and a backend in this process.
type Server struct {
	Addr   string // of the scheduler, for frontend.Options
	server *control.Server
	data   rdma.Config // of the backends
	closes []func() error
}

// Start starts a server of the models, and ends it with the test.
func Start(tb testing.TB, models ...Model) *Server {
	tb.Helper()
	return StartOver(tb, frontend.DataPlane{}, models...)
}

// StartOver is Start with backends whose data planes are as d says.
func StartOver(tb testing.TB, d frontend.DataPlane, models ...Model) *Server {
	tb.Helper()
	s := &Server{data: rdma.Config{Listen: d.Listen, Providers: d.Providers}}

	// Registered before anything is opened, so that a start that fails half way is undone; the last part goes
	// first.
	tb.Cleanup(func() {
		for i := len(s.closes) - 1; i >= 0; i-- {
			if err := s.closes[i](); err != nil {
				tb.Errorf("frontendtest: %v", err)
			}
		}
	})
	if err := s.openServer(models); err != nil {
		tb.Fatalf("frontendtest: %v", err)
	}
	return s
}

// Client dials a client of the server, and closes it with the test.
func (s *Server) Client(tb testing.TB) *frontend.Client {
	tb.Helper()
	return s.ClientOver(tb, frontend.DataPlane{})
}

// ClientOver is Client with a data plane as d says.
func (s *Server) ClientOver(tb testing.TB, d frontend.DataPlane) *frontend.Client {
	tb.Helper()
	c, err := frontend.Dial(tb.Context(), frontend.Options{Scheduler: s.Addr, Data: d})
	if err != nil {
		tb.Fatalf("frontendtest: %v", err)
	}
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Errorf("frontendtest: %v", err)
		}
	})
	return c
}

// openServer starts the scheduler, then a backend.
func (s *Server) openServer(models []Model) error {
	// As deployments have it: a request on an idle GPU is not kept waiting for others.
	e, err := engine.New(engine.Options{Prompt: 0.3})
	if err != nil {
		return err
	}
	s.closes = append(s.closes, e.Close)

	server := control.NewServer(e, control.ServerOptions{})
	s.closes = append(s.closes, server.Close)
	ln, err := control.Listen("127.0.0.1:0")
	if err != nil {
		return err
	}
	s.Addr = ln.Addr().String()
	go func() { _ = server.Serve(ln) }() // ends with the server, whose Close waits for it
	s.server = server

	leave, err := s.joinBackend("frontendtest", models)
	s.closes = append(s.closes, leave)
	return err
}

// Join adds a backend that serves these models. leave removes it; otherwise the end of the test does.
func (s *Server) Join(tb testing.TB, name string, models ...Model) (leave func()) {
	tb.Helper()
	end, err := s.joinBackend(name, models)
	once := sync.OnceFunc(func() {
		if err := end(); err != nil {
			tb.Errorf("frontendtest: %v", err)
		}
	})
	tb.Cleanup(once)
	if err != nil {
		tb.Fatalf("frontendtest: %v", err)
	}
	return once
}

// joinBackend starts a backend of one emulated GPU that connects to the scheduler. What ends it is never nil.
func (s *Server) joinBackend(name string, models []Model) (end func() error, err error) {
	var closes []func() error
	end = func() error {
		var failed error
		for i := len(closes) - 1; i >= 0; i-- {
			failed = errors.Join(failed, closes[i]())
		}
		return failed
	}

	node, err := rdma.Open(s.data)
	if err != nil {
		return end, err
	}
	closes = append(closes, node.Close)

	laidOut, err := layOut(models)
	if err != nil {
		return end, err
	}

	run := &executor{models: map[string]Model{}}
	for _, m := range models {
		run.models[m.Name] = m
	}

	b, err := backend.New(backend.Config{Name: name, Models: laidOut, Node: node,
		GPUs: []backend.GPU{{Name: "test", Executors: []device.Executor{run}, Core: -1}}})
	if err != nil {
		return end, err
	}
	closes = append(closes, b.Close)

	// The backend joins within the process; clients come over TCP, as those of a deployment do.
	addr, forget := control.ListenInProcess(s.server.Frontend, s.server.Backend)
	closes = append(closes, forget)
	leave, err := b.Connect(context.Background(), backend.Connection{Scheduler: addr})
	if err != nil {
		return end, err
	}
	closes = append(closes, leave)
	return end, nil
}
