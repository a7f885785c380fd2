//go:build linux

package frontendtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"downbeat.dev/backend"
	"downbeat.dev/backend/device"
	"downbeat.dev/backend/emu"
	"downbeat.dev/core/control"
	"downbeat.dev/core/engine"
	"downbeat.dev/core/repo"
	"downbeat.dev/frontend"
	"downbeat.dev/rdma"
)

// Model is a model that a Server serves.
type Model struct {
	Name    string
	Inputs  []frontend.TensorInfo // of fixed sizes, without a batch dimension
	Outputs []frontend.TensorInfo
	// Answer sets the outputs of one request; those that it leaves are zeros. An error fails the request with
	// frontend.ErrFailed. Nil: all outputs are zeros.
	Answer   func(Row) error
	SLO      time.Duration // deadline of a request that names none; a minute when 0
	Takes    time.Duration // of a batch of any size; 100 µs when 0. The scheduler plans with it
	BatchMax int           // requests that run together at most; 8 when 0
	Sequence string        // what stands in sequence_batching of its configuration; empty: it keeps no sequences
}

// Row is one request of a batch. It is valid until Answer returns.
type Row struct {
	model *device.Model
	slot  *device.Slot
	index int
}

// Input returns an input of the request by its name.
func (r Row) Input(name string) frontend.Tensor {
	for k := range r.model.Inputs {
		if t := &r.model.Inputs[k]; t.Name == name {
			return frontend.TensorOf(&t.Tensor, r.slot.InputRow(r.model, k, r.index))
		}
	}
	return frontend.TensorOf(nil, nil)
}

// Output returns an output of the request by its name, to be set.
func (r Row) Output(name string) frontend.Tensor {
	for k := range r.model.Outputs {
		if t := &r.model.Outputs[k]; t.Name == name {
			return frontend.TensorOf(&t.Tensor, r.slot.OutputRow(r.model, k, r.index))
		}
	}
	return frontend.TensorOf(nil, nil)
}

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

// Join adds a backend that serves these models, beside those that there are, and returns what takes it away; at the latest it leaves
// with the test.
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

// layOut describes the models as a repository does, so that they are checked as a deployment's are.
func layOut(models []Model) ([]*device.Model, error) {
	dir, err := os.MkdirTemp("", "frontendtest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)

	for _, m := range models {
		text, err := m.config()
		if err != nil {
			return nil, err
		}
		err = errors.Join(os.Mkdir(filepath.Join(dir, m.Name), 0o755), os.WriteFile(filepath.Join(dir, m.Name, "config.pbtxt"), []byte(text), 0o644))
		if err != nil {
			return nil, fmt.Errorf("model %q: %w", m.Name, err)
		}
	}

	r, err := repo.Open(dir)
	if err != nil {
		return nil, err
	}
	if len(r.Errors) > 0 {
		return nil, fmt.Errorf("models: %v", r.Errors)
	}

	var all []*device.Model
	for i := range r.Models {
		d, err := device.NewModel(&r.Models[i], 0, backend.SlotBytesMax)
		if err != nil {
			return nil, err
		}

		// The configuration says what batches take: nothing is measured, so that every host plans alike.
		if d.Profile, err = emu.Profile(&r.Models[i]); err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// config is the model's config.pbtxt.
func (m Model) config() (string, error) {
	if m.Name == "" || strings.ContainsAny(m.Name, `/\`) {
		return "", fmt.Errorf("model %q: want a name that a folder can have", m.Name)
	}
	slo, takes, batch := m.SLO, m.Takes, m.BatchMax
	if slo == 0 {
		slo = time.Minute
	}
	if takes == 0 {
		takes = 100 * time.Microsecond
	}
	if batch == 0 {
		batch = 8
	}

	text := fmt.Sprintf("name: %q platform: \"emulated\" max_batch_size: %d\n", m.Name, batch)
	for kind, tensors := range map[string][]frontend.TensorInfo{"input": m.Inputs, "output": m.Outputs} {
		for i := range tensors {
			t := &tensors[i]
			if t.Varies() {
				return "", fmt.Errorf("model %q: %s %q: BYTES is not supported here", m.Name, kind, t.Name)
			}
			if err := t.Check(); err != nil {
				return "", fmt.Errorf("model %q: %s %w", m.Name, kind, err)
			}

			shape := strings.Join(strings.Fields(strings.Trim(fmt.Sprint(t.Shape), "[]")), ", ")
			text += fmt.Sprintf("%s [ { name: %q data_type: TYPE_%s dims: [ %s ] } ]\n", kind, t.Name, t.Datatype, shape)
		}
	}

	if m.Sequence != "" {
		text += fmt.Sprintf("sequence_batching { %s }\n", m.Sequence)
	}

	// The repository reads times in milliseconds, and ℓ(b) wants an alpha above 0.
	parameter := func(key string, d time.Duration) string {
		return fmt.Sprintf("parameters { key: %q value { string_value: \"%f\" } }\n", key, float64(d)/float64(time.Millisecond))
	}
	return text + parameter("alpha_ms", time.Microsecond) + parameter("beta_ms", takes) + parameter("slo_ms", slo), nil
}
