package gateway

import (
	"context"
	"net/http"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/observe"
	"downbeat.dev/core/wire"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/internal/echo"
)

// TestProbeWantsOneModel: one model of two has no backend. By the protocol the gateway is not ready, but the
// balancer's probe succeeds. The probe needs no token.
func TestProbeWantsOneModel(t *testing.T) {
	one := model.Info{ID: 1, Name: "there", Version: "1", SLO: int64(time.Second), BatchMax: 1, Ready: true, Platform: "test",
		Inputs: []model.Tensor{tensor("x", "UINT8", 1)}, Outputs: []model.Tensor{tensor("y", "UINT8", 1)}}
	gone := one
	gone.ID, gone.Name, gone.Ready = 2, "gone", false
	for _, c := range []struct {
		name           string
		models         []model.Info
		ready, serving int
	}{
		{"one of two", []model.Info{one, gone}, http.StatusServiceUnavailable, http.StatusOK},
		{"none", []model.Info{gone}, http.StatusServiceUnavailable, http.StatusServiceUnavailable},
		{"all", []model.Info{one}, http.StatusOK, http.StatusOK},
	} {
		s, err := echo.New(c.models, func(wire.Submit, []byte) ([]byte, model.Reason) { return nil, model.NoBackend })
		if err != nil {
			t.Fatal(err)
		}
		client, err := frontend.Dial(context.Background(), frontend.Options{Scheduler: s.Addr})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close(); s.Close() })
		g, rest, _ := servingClient(t, client, Options{Token: "secret"}, nil)
		for path, want := range map[string]int{"/v2/health/ready": c.ready, observe.ProbePath: c.serving} {
			if code, _, text := call(t, "GET", "http://"+rest+path, nil); code != want {
				t.Errorf("%s: %s: %d %s, want %d", c.name, path, code, text, want)
			}
		}

		g.leaving.Store(true)
		if code, _, _ := call(t, "GET", "http://"+rest+observe.ProbePath, nil); code != http.StatusServiceUnavailable {
			t.Errorf("%s: a gateway that leaves answers its probe with %d", c.name, code)
		}
	}
}

// TestHealthIsKeptForAWhile shows that health is computed at most once per interval, however often it is requested.
func TestHealthIsKeptForAWhile(t *testing.T) {
	c, _ := client(t, compute)
	var h healthState
	now := time.Now()
	h.lookAt(c, now)
	h.allReady = !h.allReady // only a new check can correct it
	wrong := h.allReady
	if got, _ := h.lookAt(c, now.Add(healthEvery-1)); got != wrong {
		t.Error("looked again within the time")
	}
	if got, _ := h.lookAt(c, now.Add(healthEvery)); got == wrong {
		t.Error("did not look again after the time")
	}
}
