// Package stage sets up a scheduler, emulated backends and a frontend, in one process or over TCP, for benchmarks,
// examples and tests. Deployments use cmd/downbeat instead.
package stage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"downbeat.dev/backend"
	"downbeat.dev/backend/device"
	"downbeat.dev/backend/emu"
	"downbeat.dev/core/control"
	"downbeat.dev/core/engine"
	"downbeat.dev/frontend"
	"downbeat.dev/rdma"
)

// Stage holds the parts that Open started. Its fields are valid until Close.
type Stage struct {
	Engine *engine.Engine
	Server *control.Server
	Addr   string // of Server, for frontends of this process
	Client *frontend.Client
	closes []func() error
}

// Close closes everything in reverse order.
func (s *Stage) Close() error {
	var err error
	// Close parts against the order of their start: each still has the parts on which it depends.
	for i := len(s.closes) - 1; i >= 0; i-- {
		err = errors.Join(err, s.closes[i]())
	}
	s.closes = nil
	return err
}

func (s *Stage) onClose(f func() error) { s.closes = append(s.closes, f) }

// Open runs a scheduler, one backend with gpus emulated GPUs, and a frontend in this process. The models are
// config.pbtxt texts by name. The frontend waits for late outputs.
func Open(ctx context.Context, models map[string]string, gpus int) (*Stage, error) {
	s := &Stage{}
	err := s.OpenScheduler(engine.Options{Prompt: 0.3}) // as in deployments
	if err == nil {
		err = s.OpenBackend(models, gpus, rdma.Config{}, s.Addr)
	}
	if err == nil {
		err = s.OpenFrontend(ctx, frontend.Options{Grace: 10 * time.Second, Scheduler: s.Addr})
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// OpenScheduler starts a scheduler that serves sessions within the process.
func (s *Stage) OpenScheduler(o engine.Options) error {
	e, err := engine.New(o)
	if err != nil {
		return err
	}

	s.Engine = e
	s.onClose(e.Close)

	s.Server = control.NewServer(e, control.ServerOptions{})
	s.onClose(s.Server.Close)

	addr, forget := control.ListenInProcess(s.Server.Frontend, s.Server.Backend)
	s.Addr = addr
	s.onClose(forget)
	return nil
}

// Listen lets the scheduler accept sessions over TCP on addr, and returns the address.
func (s *Stage) Listen(addr string) (net.Addr, error) {
	ln, err := control.Listen(addr)
	if err != nil {
		return nil, err
	}
	go func() { _ = s.Server.Serve(ln) }() // ends with the server, whose Close waits for it
	return ln.Addr(), nil
}

// OpenFrontend connects a frontend and waits until it knows at least one model and all known models are ready.
func (s *Stage) OpenFrontend(ctx context.Context, o frontend.Options) error {
	c, err := frontend.Dial(ctx, o)
	if err != nil {
		return err
	}

	s.Client = c
	s.onClose(c.Close)

	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()

	for {
		all := c.Models()
		// Without any model it is not ready either: the backends may still be connecting.
		ready := len(all) > 0
		for _, m := range all {
			ready = ready && m.Ready
		}
		if ready {
			return nil
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("models are not ready: %w", ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// slotBytes is the limit of a backend's slot.
const slotBytes = 64 << 20

// OpenBackend starts a backend of emulated GPUs and connects it to the scheduler at an address.
func (s *Stage) OpenBackend(texts map[string]string, gpus int, data rdma.Config, scheduler string) error {
	models, err := emu.ReadModels(texts, slotBytes)
	if err != nil {
		return err
	}

	node, err := rdma.Open(data)
	if err != nil {
		return err
	}
	s.onClose(node.Close)

	c := backend.Config{Name: "emulated", Models: models, Node: node}
	for i := range gpus {
		x, err := emu.New()
		if err != nil {
			return err
		}
		// Reserve no core for an emulated GPU: it computes nothing.
		c.GPUs = append(c.GPUs, backend.GPU{Name: fmt.Sprintf("gpu%d", i), Executors: []device.Executor{x}, Core: -1})
	}

	b, err := backend.New(c)
	if err != nil {
		return err
	}
	s.onClose(b.Close)

	// The backend takes batches from here on: its node and its GPUs are open.
	leave, err := b.Connect(context.Background(), backend.Connection{Scheduler: scheduler})
	if err != nil {
		return err
	}
	s.onClose(leave)
	return nil
}
