//go:build linux

package downbeat

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/core/sim"
	"downbeat.dev/frontend/app"
)

// slowModel is an emulated model of which a GPU answers some eight requests a second.
const slowModel = `name: "echo"
platform: "emulated"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
parameters { key: "alpha_ms" value { string_value: "100" } }
parameters { key: "beta_ms" value { string_value: "100" } }
parameters { key: "slo_ms" value { string_value: "5000" } }
`

// twice asks the model two times, one after the other.
const twice = `latency_ms: 5000
inputs: [ {name: in, datatype: FP32, shape: [4]} ]
stages:
  - {name: first, model: echo, inputs: {x: in}, outputs: {y: a}}
  - {name: second, model: echo, inputs: {x: a}, outputs: {y: b}}
outputs: [ {name: out, of: b} ]
`

// killable starts a backend whose session with the scheduler can be cut as a death cuts it: what runs on it is not told of.
func killable(t *testing.T, c Config) (s *System, kill func()) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var open []net.Conn
	hold := func(c net.Conn) {
		mu.Lock()
		open = append(open, c)
		mu.Unlock()
	}
	kill = sync.OnceFunc(func() {
		_ = ln.Close() // it does not come back
		mu.Lock()
		defer mu.Unlock()
		for _, c := range open {
			_ = c.Close()
		}
	})
	t.Cleanup(kill)

	scheduler := c.Scheduler
	go func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			hold(in)
			out, err := net.Dial("tcp", scheduler)
			if err != nil {
				_ = in.Close()
				continue
			}
			hold(out)
			go func() { _, _ = io.Copy(out, in) }()
			go func() { _, _ = io.Copy(in, out) }()
		}
	}()

	c.Roles, c.Scheduler = Backend, ln.Addr().String()
	return start(t, c), kill
}

// twiceOf configures roles that serve the application.
func twiceOf(t *testing.T, roles Role) Config {
	t.Helper()
	c := emulated(t, roles)
	addModel(t, c.Models, "echo", slowModel)
	dir := filepath.Join(c.Models, "twice")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "application.yaml"), []byte(twice), 0o644)); err != nil {
		t.Fatal(err)
	}
	c.Listen, c.SessionTrial = "127.0.0.1:0", sim.Trial
	return c
}

// openTwice starts a scheduler and a gateway with the application, and three backends of two GPUs each.
func openTwice(t *testing.T) (s *System, kills []func()) {
	c := twiceOf(t, Scheduler|Gateway)
	s = start(t, c)

	c.Scheduler = s.Config().Listen
	for range 3 {
		_, kill := killable(t, c)
		kills = append(kills, kill)
	}
	waitFor(t, func() bool {
		m := s.Client().Model("echo", "")
		return m != nil && m.Ready && s.capacity().GPUs == 6
	})
	return s, kills
}

// camera sends a session a frame each second and counts the answers, until ctx ends.
func camera(ctx context.Context, t *testing.T, wait *sync.WaitGroup, stream *app.Stream, answered *atomic.Int64) {
	for tick := time.NewTicker(time.Second); ; {
		wait.Go(func() {
			r, err := stream.Run(ctx, app.Frame{Inputs: [][]byte{make([]byte, 16)}})
			if err == nil {
				r.Release()
				answered.Add(1)
			} else if errors.Is(err, app.ErrClosed) {
				t.Errorf("session %s: %v", stream.Session().Name, err)
			}
		})
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
	}
}

// TestKilledBackendLosesNoSession: three backends under as many sessions as admission lets in, one of them is killed. Every
// session stays open and goes on getting answers, none is evicted, and the metrics tell of them.
func TestKilledBackendLosesNoSession(t *testing.T) {
	s, kills := openTwice(t)
	if got := s.capacity(); got.Spare != 2 {
		t.Errorf("%d GPUs to spare of 3 backends with 2 each, want 2", got.Spare)
	}

	a := s.Applications().App("twice")
	var all []*app.Stream
	for len(all) < 100 {
		stream, err := a.Open(t.Context(), app.Session{Name: fmt.Sprint(len(all)), Rate: 1, Lease: time.Hour})
		if errors.Is(err, app.ErrRefused) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		all = append(all, stream)
	}
	if len(all) < 3 || len(all) == 100 {
		t.Fatalf("%d sessions got in, want some", len(all))
	}

	// Cameras go on whatever becomes of their frames.
	ctx, stop := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	answered := make([]atomic.Int64, len(all))
	for i, stream := range all {
		wait.Go(func() { camera(ctx, t, &wait, stream, &answered[i]) })
	}
	awaitEach := func(more int64) {
		t.Helper()
		from := make([]int64, len(all))
		for i := range all {
			from[i] = answered[i].Load()
		}
		for i := range all {
			waitFor(t, func() bool { return answered[i].Load() >= from[i]+more })
		}
	}
	awaitEach(2)
	kills[1]()
	waitFor(t, func() bool { return s.capacity().GPUs == 4 })
	awaitEach(2)
	stop()
	wait.Wait()

	counts := a.Stats()
	if a.Sessions() != len(all) || counts.Evicted > 0 || counts.Frames != counts.Answered+counts.Failed {
		t.Errorf("%d sessions of %d are open; %+v", a.Sessions(), len(all), counts)
	}
	checkSessionMetrics(t, s, len(all))
}

// TestARestartedSchedulerLosesNoSession: a session is its frontend's, and goes on once a scheduler is there again.
func TestARestartedSchedulerLosesNoSession(t *testing.T) {
	c := twiceOf(t, Scheduler)
	scheduler, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	c.Listen = scheduler.Config().Listen
	c.Scheduler = c.Listen

	backend, gateway := c, c
	backend.Roles, gateway.Roles = Backend, Gateway
	start(t, backend)
	s := start(t, gateway)
	waitFor(t, func() bool { m := s.Client().Model("echo", ""); return m != nil && m.Ready })

	a := s.Applications().App("twice")
	stream, err := a.Open(t.Context(), app.Session{Name: "gate", Rate: 1, Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	ctx, stop := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	var answered atomic.Int64
	wait.Go(func() { camera(ctx, t, &wait, stream, &answered) })
	waitFor(t, func() bool { return answered.Load() >= 2 })

	if err := scheduler.Close(); err != nil {
		t.Error(err)
	}
	start(t, c)
	before := answered.Load()
	waitFor(t, func() bool { return answered.Load() >= before+3 })
	stop()
	wait.Wait()
	if counts := a.Stats(); a.Sessions() != 1 || counts.Evicted > 0 || counts.Frames != counts.Answered+counts.Failed {
		t.Errorf("%d sessions are open, want 1; %+v", a.Sessions(), counts)
	}
}

// checkSessionMetrics looks for the metrics of so many sessions, of which none was evicted.
func checkSessionMetrics(t *testing.T, s *System, open int) {
	r, err := http.Get("http://" + s.Config().HTTP + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	for _, want := range []string{
		fmt.Sprintf(`downbeat_sessions_open{application="twice"} %d`, open), `downbeat_sessions_evicted_total{application="twice"} 0`,
		`downbeat_sessions_hurt{application="twice"}`, `downbeat_sessions_hurt_total{application="twice"}`} {
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%v; the metrics lack %s", err, want)
		}
	}
}
