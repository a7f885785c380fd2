package backend_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"downbeat.dev/backend"
	"downbeat.dev/backend/device"
	"downbeat.dev/backend/emu"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/backend/ort"
	"downbeat.dev/core/control"
	"downbeat.dev/core/engine"
	"downbeat.dev/core/repo"
	"downbeat.dev/core/wire"
	"downbeat.dev/frontend"
	"downbeat.dev/internal/logtest"
	"downbeat.dev/rdma"
)

const emulatedConfig = `
platform: "emulated"
max_batch_size: 16
input [ { name: "image" data_type: TYPE_UINT8 dims: [ 16, 16, 3 ] } ]
output [ { name: "scores" data_type: TYPE_FP32 dims: [ 10 ] } ]
parameters { key: "alpha_ms" value { string_value: "0.2" } }
parameters { key: "beta_ms" value { string_value: "1" } }
parameters { key: "slo_ms" value { string_value: "10000" } }
`

const twiceConfig = `
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
parameters { key: "slo_ms" value { string_value: "10000" } }
`

// writeRepository writes a repository with one emulated model, one real model (y = x + x), one whose file is invalid
// and one whose configuration is wrong.
func writeRepository(t *testing.T) string {
	t.Helper()
	g := onnx.NewBuilder("twice")
	x := g.Input("x", onnx.Float, onnx.Batched(4))
	g.Output("y", g.Node("Add", []string{x, x}), onnx.Float, onnx.Batched(4))
	m, err := g.Model(13)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for path, text := range map[string][]byte{
		"emulated/config.pbtxt": []byte(emulatedConfig),
		"twice/config.pbtxt":    []byte(twiceConfig),
		"twice/1/model.onnx":    m.Marshal(),
		"garbage/config.pbtxt":  []byte(twiceConfig),
		"garbage/1/model.onnx":  []byte("no model at all"),
		"misspelt/config.pbtxt": []byte("plattform: \"emulated\""),
		"misspelt/1/.gitkeep":   nil,
	} {
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// scheduler is an engine and its sessions on a TCP port.
type scheduler struct {
	e    *engine.Engine
	s    *control.Server
	addr string
}

func startScheduler(t *testing.T, addr string) *scheduler {
	t.Helper()
	e, err := engine.New(engine.Options{Prompt: 0.5})
	if err != nil {
		t.Fatal(err)
	}
	s := &scheduler{e: e, s: control.NewServer(e, control.ServerOptions{Token: token})}
	var ln net.Listener
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) { // a restart finds its port soon
		if ln, err = control.Listen(addr); err == nil || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	s.addr = ln.Addr().String()
	go s.s.Serve(ln)
	return s
}

func (s *scheduler) stop(t *testing.T) {
	t.Helper()
	if err := errors.Join(s.s.Close(), s.e.Close()); err != nil {
		t.Errorf("stop scheduler: %v", err)
	}
}

const token = "a secret of sixteen"

func library(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("ORT_LIB"); path != "" {
		return path
	}
	path, _ := filepath.Abs(filepath.Join("..", ".cache", "ort", ort.Version, "libonnxruntime.so.1"))
	if _, err := os.Stat(path); err != nil {
		t.Skipf("ONNX Runtime is not installed: %v", err)
	}
	return path
}

func startBackend(t *testing.T, o backend.Options) *backend.Service {
	t.Helper()
	o.Token = token
	s, err := backend.Start(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func stopBackend(t *testing.T, s *backend.Service) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Errorf("stop backend: %v", err)
	}
}

// dial connects a frontend and waits for the models.
func dial(t *testing.T, addr string, models ...string) *frontend.Client {
	t.Helper()
	c, err := frontend.Dial(context.Background(), frontend.Options{Scheduler: addr, Token: token, Reconnect: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		missing := ""
		for _, name := range models {
			if m := c.Model(name, ""); m == nil || !m.Ready {
				missing = name
			}
		}
		if missing == "" {
			return c
		}
		if time.Now().After(end) {
			t.Fatalf("model %s is not ready", missing)
		}
	}
}

func emulatedModel(t *testing.T, dir string) *device.Model {
	t.Helper()
	r, err := repo.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := r.Find("emulated", "")
	if err != nil {
		t.Fatal(err)
	}
	d, err := device.NewModel(m, 0, backend.SlotBytesMax)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// ask sends a request, with several attempts on a busy machine.
func ask(c *frontend.Client, model string, in []byte) (r frontend.Result, err error) {
	for budget := 50 * time.Millisecond; budget < 5*time.Second; budget += budget / 2 {
		ctx, cancel := context.WithTimeout(context.Background(), budget)
		r, err = c.InferCopy(ctx, model, in)
		cancel()
		var outcome *frontend.OutcomeError
		if !errors.As(err, &outcome) {
			break
		}
	}
	return r, err
}

// pattern is an input of the emulated model; checkPattern checks its output.
func pattern(m *device.Model, seed int) []byte {
	return bytes.Repeat([]byte{byte(seed), byte(seed >> 8), byte(seed * 7)}, m.InBytes/3)
}

func checkPattern(m *device.Model, in, out []byte) error {
	if !bytes.Equal(out, emu.Pattern(m, in)) {
		return errors.New("the output is another request's")
	}
	return nil
}

// askEmulated sends one request to the emulated model and checks that the output is its own.
func askEmulated(c *frontend.Client, m *device.Model, seed int) error {
	in := pattern(m, seed)
	r, err := ask(c, "emulated", in)
	if err != nil {
		return err
	}
	defer r.Release()
	return checkPattern(m, in, r.Data)
}

func askTwice(c *frontend.Client, seed int) error {
	in := make([]byte, 16)
	for i := range 4 {
		binary.LittleEndian.PutUint32(in[4*i:], math.Float32bits(float32(seed*4+i)))
	}
	r, err := ask(c, "twice", in)
	if err != nil {
		return err
	}
	defer r.Release()
	for i := range 4 {
		if got := math.Float32frombits(binary.LittleEndian.Uint32(r.Data[4*i:])); got != 2*float32(seed*4+i) {
			return errors.New("wrong output")
		}
	}
	return nil
}

// TestServeRepository serves real and emulated models end to end over TCP sessions, and reports what is wrong with
// the others.
func TestServeRepository(t *testing.T) {
	dir := writeRepository(t)
	s := startScheduler(t, "127.0.0.1:0")
	defer s.stop(t)
	var log logtest.Buffer
	b := startBackend(t, backend.Options{Scheduler: s.addr, Models: dir, Executors: 2, Library: library(t), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	defer stopBackend(t, b)
	c := dial(t, s.addr, "emulated", "twice")
	defer c.Close()
	m := emulatedModel(t, dir)
	var wait sync.WaitGroup
	for caller := range 16 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for i := range 20 {
				if err := errors.Join(askEmulated(c, m, caller*20+i), askTwice(c, caller*20+i)); err != nil {
					t.Errorf("request %d.%d: %v", caller, i, err)
				}
			}
		}()
	}
	wait.Wait()
	rows := uint64(0)
	for _, g := range b.Stats() {
		rows += g.Rows
	}
	if rows < 2*16*20 {
		t.Errorf("%d rows were executed, want at least %d", rows, 2*16*20)
	}
	for _, want := range []string{"model=garbage", "not an ONNX model", "model=misspelt", "plattform", "model measured"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is not in the log:\n%s", want, log.String())
		}
	}
}

// TestServeWithoutLibrary serves the emulated model and says how to get ONNX Runtime.
func TestServeWithoutLibrary(t *testing.T) {
	dir := writeRepository(t)
	s := startScheduler(t, "127.0.0.1:0")
	defer s.stop(t)
	var log logtest.Buffer
	b := startBackend(t, backend.Options{Scheduler: s.addr, Models: dir, Library: "/nowhere/libonnxruntime.so.1", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	defer stopBackend(t, b)
	c := dial(t, s.addr, "emulated")
	defer c.Close()
	if err := askEmulated(c, emulatedModel(t, dir), 1); err != nil {
		t.Error(err)
	}
	if text := log.String(); !strings.Contains(text, "real models are left out") || !strings.Contains(text, "/nowhere/") {
		t.Errorf("the log does not say what is missing:\n%s", text)
	}
}

// TestEmulateRealModels serves a real model on emulated GPUs with this host's durations.
func TestEmulateRealModels(t *testing.T) {
	dir := writeRepository(t)
	s := startScheduler(t, "127.0.0.1:0")
	defer s.stop(t)
	b := startBackend(t, backend.Options{Scheduler: s.addr, Models: dir, Emulate: 3, Library: library(t)})
	defer stopBackend(t, b)
	h := b.Hello()
	if len(h.GPUs) != 3 || len(h.Models) != 2 || h.Models[1].Info.Name != "twice" || h.Models[1].Profile[0] <= 0 {
		t.Errorf("hello %+v, want three GPUs, the emulated model and the one measured", h)
	}
	c := dial(t, s.addr, "twice")
	defer c.Close()
	r, err := ask(c, "twice", make([]byte, 16))
	if err != nil {
		t.Fatalf("%v; profile %v; backend %+v", err, h.Models[1].Profile, b.Stats())
	}
	r.Release()
}

// TestSchedulerRestarts keeps sending requests while the scheduler leaves and returns on its port.
func TestSchedulerRestarts(t *testing.T) {
	dir := writeRepository(t)
	s := startScheduler(t, "127.0.0.2:0")
	b := startBackend(t, backend.Options{Scheduler: s.addr, Models: dir, Emulate: 2})
	defer stopBackend(t, b)
	c := dial(t, s.addr, "emulated")
	defer c.Close()
	m := emulatedModel(t, dir)
	stop := make(chan struct{})
	var wait sync.WaitGroup
	for caller := range 8 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				err := askEmulated(c, m, caller*1000+i)
				var outcome *frontend.OutcomeError
				if err != nil && !errors.As(err, &outcome) { // a reason is an answer; a wrong output is not
					t.Errorf("request %d.%d: %v", caller, i, err)
				}
			}
		}()
	}
	time.Sleep(50 * time.Millisecond)
	s.stop(t)
	again := startScheduler(t, s.addr)
	defer again.stop(t)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if m := c.Model("emulated", ""); c.Connected() && m != nil && m.Ready {
			break
		}
		if time.Now().After(end) {
			t.Error("the backend did not come back")
			break
		}
	}
	time.Sleep(50 * time.Millisecond)
	close(stop)
	wait.Wait()
	if err := askEmulated(c, m, 1); err != nil {
		t.Errorf("after the restart: %v", err)
	}
}

// TestOneProcess serves through the scheduler's in-process sessions.
func TestOneProcess(t *testing.T) {
	dir := writeRepository(t)
	s := startScheduler(t, "127.0.0.1:0")
	defer s.stop(t)
	addr, forget := control.ListenInProcess(s.s.Frontend, s.s.Backend)
	defer func() { _ = forget() }()
	b := startBackend(t, backend.Options{Models: dir, Emulate: 1, Scheduler: addr})
	defer stopBackend(t, b)
	c := dial(t, s.addr, "emulated")
	defer c.Close()
	m := emulatedModel(t, dir)
	for i := range 20 {
		if err := askEmulated(c, m, i); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStartRefuses(t *testing.T) {
	empty := t.TempDir()
	for want, o := range map[string]backend.Options{
		"executors: -1":           {Executors: -1},
		"emulate: 100000":         {Emulate: 100000},
		"257 bytes: want at most": {Name: strings.Repeat("n", 257)},
		"sub-cluster: \"sss":      {SubCluster: strings.Repeat("s", 300)},
		"cores: -2":               {Cores: []int{-2}},
		"lanes: 17":               {Lanes: 17},
		"threads: -1":             {Threads: -1},
		"3 is no divisor of the threads of an executor, 4": {Threads: 4, Lanes: 3},
		"lanes: 2 is no divisor":                           {Lanes: 2},
		"not together with threads":                        {Cores: []int{0}, Lanes: 2},
		"only for executors on the":                        {Emulate: 1, Threads: 2},
		"want 1024 in all at most":                         {Emulate: 600, Lanes: 2},
		"open model repository":                            {Models: filepath.Join(empty, "gone")},
		"no model of " + empty:                             {Models: empty},
		"no GPU and driver":                                {Models: writeRepository(t), GPUs: true, Library: "/nowhere"},
		"open data plane":                                  {Models: writeRepository(t), Emulate: 1, Data: rdma.Config{Listen: "nonsense"}},
		"connect to scheduler: sch":                        {Models: writeRepository(t), Emulate: 1},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if _, err := backend.Start(ctx, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
		cancel()
	}
}

// checkUnloadedIsKnown: a backend tells what a measured model takes even while no GPU of it holds the model, so that
// plans can count it. Of a loaded model it tells the time that this load took.
func checkUnloadedIsKnown(t *testing.T, dir string, static uint64, load time.Duration) {
	t.Helper()
	s := startScheduler(t, "127.0.0.1:0")
	defer s.stop(t)
	b := startBackend(t, backend.Options{Scheduler: s.addr, Models: dir, Library: library(t)})
	defer stopBackend(t, b)
	describe := func() (d wire.BackendModel) {
		for _, m := range b.Hello().Models {
			if m.Info.Name == "twice" {
				d = m
			}
		}
		return d
	}
	if m := describe(); m.Load <= 0 || m.Load == load || !slices.Contains(m.Loaded, true) {
		t.Errorf("loaded %v, in %v; an earlier load took %v", m.Loaded, m.Load, load)
	}
	if err := b.UnloadModel(context.Background(), "twice", ""); err != nil {
		t.Fatal(err)
	}
	if m := describe(); slices.Contains(m.Loaded, true) || m.Info.Static != static || m.Load != load {
		t.Errorf("loaded %v, takes %d bytes and %v, want %d and %v", m.Loaded, m.Info.Static, m.Load, static, load)
	}
}

// TestMeasureModels prints and stores a profile that a backend then uses.
func TestMeasureModels(t *testing.T) {
	dir := writeRepository(t)
	var out bytes.Buffer
	err := backend.MeasureModels(context.Background(), backend.ProfileOptions{Models: dir, Rounds: 5, Core: -1, Library: library(t), Out: &out})
	for _, want := range []string{"garbage", "not an ONNX model", "misspelt"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
	if text := out.String(); !strings.Contains(text, "twice version 1, batches up to 8") || !strings.Contains(text, "ℓ(b)") {
		t.Errorf("printed:\n%s", text)
	}
	r, err := repo.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := r.Find("twice", "")
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Profiles) != 1 || len(m.Profiles[0].TableNS) != 8 || m.Profiles[0].Repeats != 5 {
		t.Fatalf("stored %+v", m.Profiles)
	}
	if p := m.Profiles[0]; p.StaticBytes <= 0 || p.LoadNS <= 0 || p.WarmUpNS <= 0 || !strings.Contains(out.String(), fmt.Sprintf("memory: %d bytes while loaded", p.StaticBytes)) {
		t.Errorf("stored %d bytes, loaded in %v, warmed up in %v; printed:\n%s", p.StaticBytes, p.LoadNS, p.WarmUpNS, out.String())
	}
	checkUnloadedIsKnown(t, dir, uint64(m.Profiles[0].StaticBytes), m.Profiles[0].LoadNS+m.Profiles[0].WarmUpNS)
	if err := backend.MeasureModels(context.Background(), backend.ProfileOptions{Models: dir, Only: []string{"emulated", "gone"}, Core: -1, Library: library(t), Out: &out}); err == nil ||
		!strings.Contains(err.Error(), "emulated") || !strings.Contains(err.Error(), `no model "gone"`) {
		t.Errorf("error %v, want one that names both models", err)
	}
}
