package app_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	graph "downbeat.dev/core/app"
	"downbeat.dev/core/model"
	"downbeat.dev/core/sim"
	"downbeat.dev/core/wire"
	"downbeat.dev/frontend/app"
)

// cluster is an application on GPUs that may be lost, with models that may fail.
type cluster struct {
	app     *app.App
	gate    *app.Admission
	gpus    atomic.Int32
	failing atomic.Bool
}

func openCluster(t *testing.T, gpus int32) *cluster {
	c := new(cluster)
	c.gpus.Store(gpus)
	c.gate = app.NewAdmission(func() graph.Capacity { return graph.Capacity{GPUs: int(c.gpus.Load()), Hop: time.Millisecond} }, sim.Trial)
	answer := func(w wire.Submit, in []byte) ([]byte, model.Reason) {
		if c.failing.Load() {
			return nil, model.ExecutionFailed
		}
		return doubled(w, in)
	}
	c.app, _ = open(t, application("y", ask("first", "double", "in", "y")), answer, app.Options{Profiles: tenth(t), Admission: c.gate})
	return c
}

// fill opens sessions until one is refused.
func (c *cluster) fill(t *testing.T, s app.Session) (all []*app.Stream) {
	for len(all) < 100 {
		stream, err := c.app.Open(context.Background(), s)
		if errors.Is(err, app.ErrRefused) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, stream)
	}
	if len(all) < 3 || len(all) == 100 {
		t.Fatalf("%d sessions got in, want some", len(all))
	}
	return all
}

// hurt breaks a session's promise: its latest frames fail.
func (c *cluster) hurt(t *testing.T, s *app.Stream) {
	c.failing.Store(true)
	defer c.failing.Store(false)
	for range 3 {
		if _, err := s.Run(context.Background(), app.Frame{Inputs: [][]byte{{1, 0, 0, 0}}}); err == nil || errors.Is(err, app.ErrTooFast) {
			t.Fatalf("a frame that should fail: %v", err)
		}
	}
	if !s.Standing().Hurt {
		t.Fatalf("%+v, want a session that is hurt", s.Standing())
	}
}

func told(s *app.Stream) bool {
	select {
	case <-s.Changed():
		return true
	default:
		return false
	}
}

// TestLostGPUsEvictTheLeastClaimLastOfAll: half of the GPUs are lost. No session is evicted before they have been
// missing for a while and some session is hurt. Then the sessions with the least claim are evicted and told why. The
// others stay, and later requests are decided as before.
func TestLostGPUsEvictTheLeastClaimLastOfAll(t *testing.T) {
	c := openCluster(t, 2)
	ask := app.Session{Rate: 10, Latency: 2 * time.Second, Lease: time.Hour}
	ask.Claim = 1
	precious, err := c.app.Open(context.Background(), ask)
	if err != nil {
		t.Fatal(err)
	}
	ask.Claim = 0
	all := c.fill(t, ask)

	now := time.Now()
	if got := c.gate.Review(now); len(got) > 0 {
		t.Fatalf("%d evicted while no GPU lacks", len(got))
	}
	c.gpus.Store(1)
	c.hurt(t, all[0])
	if got := c.gate.Review(now); len(got) > 0 {
		t.Errorf("%d evicted at once: the backend may start again", len(got))
	}
	c.gpus.Store(0)
	if got := c.gate.Review(now.Add(time.Minute)); len(got) > 0 {
		t.Errorf("%d evicted without any GPU: that helps nobody", len(got))
	}

	c.gpus.Store(1)
	evicted := c.gate.Review(now.Add(time.Minute))
	if len(evicted) == 0 || len(evicted) >= len(all) || c.app.Sessions() != len(all)+1-len(evicted) {
		t.Fatalf("%d of %d evicted, %d open", len(evicted), len(all)+1, c.app.Sessions())
	}
	for i, s := range all {
		_, err := s.Run(context.Background(), app.Frame{Inputs: [][]byte{{1, 0, 0, 0}}})
		var why *app.EvictedError
		gone := i >= len(all)-len(evicted)
		if errors.As(err, &why) != gone || errors.Is(err, app.ErrEvicted) != gone || errors.Is(err, app.ErrClosed) != gone {
			t.Errorf("session %d of %d, %d evicted: %v", i, len(all), len(evicted), err)
		}
		if !gone {
			continue
		}
		if why.Had != 2 || why.Left != 1 || !told(s) || !strings.Contains(s.Standing().Evicted, "1 GPUs of 2 are left") {
			t.Errorf("told %q after %+v", s.Standing().Evicted, why)
		}
	}
	if _, err := precious.Run(context.Background(), app.Frame{Inputs: [][]byte{{1, 0, 0, 0}}}); err != nil {
		t.Errorf("the session with the greatest claim: %v", err)
	}
	if s := c.app.Stats(); s.Evicted != uint64(len(evicted)) || s.Hurt != 1 {
		t.Errorf("%+v, want %d evicted and one hurt", s, len(evicted))
	}
	if _, err := c.app.Open(context.Background(), ask); !errors.Is(err, app.ErrRefused) {
		t.Errorf("another one: %v, want a refusal", err)
	}
	if got := c.gate.Review(now.Add(2 * time.Minute)); len(got) > 0 {
		t.Errorf("%d evicted once more", len(got))
	}
	checkCounts(t, c.app)
}

// TestFramesGoBeforeSessions shows that sessions that accept fewer frames get fewer while GPUs are missing, and all
// of them afterwards.
func TestFramesGoBeforeSessions(t *testing.T) {
	c := openCluster(t, 2)
	all := c.fill(t, app.Session{Rate: 10, LeastRate: 2, Latency: 2 * time.Second, Lease: time.Hour})
	now := time.Now()
	c.gpus.Store(1)
	c.hurt(t, all[0])
	told(all[0])
	c.gate.Review(now)
	if got := c.gate.Review(now.Add(time.Minute)); len(got) > 0 {
		t.Errorf("%d evicted although fewer frames would do", len(got))
	}

	slowed := 0
	for _, s := range all {
		if st := s.Standing(); st.Slowed > 0 {
			slowed++
			if st.Slowed != 2 || !told(s) {
				t.Errorf("slowed to %v frames/s, want 2, and the session told", st.Slowed)
			}
		}
	}
	if slowed == 0 || all[len(all)-1].Standing().Slowed == 0 {
		t.Fatalf("%d of %d slowed, want the latest at least", slowed, len(all))
	}

	// The review's clock is a minute ahead, so no frame is due yet.
	if _, err := all[len(all)-1].Run(context.Background(), app.Frame{Inputs: [][]byte{{1, 0, 0, 0}}}); !errors.Is(err, app.ErrTooFast) {
		t.Errorf("a frame before those that are left: %v", err)
	}

	c.gpus.Store(2)
	c.gate.Review(now.Add(2 * time.Minute))
	for i, s := range all {
		if s.Standing().Slowed > 0 {
			t.Errorf("session %d is slowed although all GPUs are back", i)
		}
	}

	_, err := c.app.Open(context.Background(), app.Session{Rate: 5, LeastRate: 6})
	if err == nil || !strings.Contains(err.Error(), "least rate 6: want 0 to the rate, 5 frames/s") {
		t.Errorf("a least rate above the rate: %v", err)
	}
}
