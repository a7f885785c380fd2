package control

import (
	"testing"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/wire"
)

// TestCloseEndsNoRequest: requests that are queued or in flight when a scheduler is told to stop outlive it. Their
// frontends hear that the link is lost and submit them again to the next scheduler. An outcome, because the backends
// leave too, would end the requests.
func TestCloseEndsNoRequest(t *testing.T) {
	for name, local := range map[string]bool{"tcp": false, "process": true} {
		t.Run(name, func(t *testing.T) {
			for range 10 {
				ln, err := Listen("127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				h := openEngine(t, ln, ServerOptions{}, engine.Options{})
				c, r := newCaller(), newRunner(func(wire.Item) {})
				r.mute = true // batches stay in flight
				f, _ := h.dialBoth(local, DialOptions{}, c, r, backendHello("m"))
				c.until(t, "model ready", func() bool { return c.models["m"].Ready })

				id := c.models["m"].ID
				for i := range uint64(200) {
					f.Submit([]wire.Submit{{ID: i + 1, Model: id, Budget: 60e9}})
				}
				waitFor(t, "requests queued", func() bool { return h.e.Stats().Queued > 0 })
				h.s.Close()
				c.until(t, "the link lost", func() bool { return c.downs > 0 })
				if got := snapshot(c); len(got) > 0 {
					t.Fatalf("%d requests were ended by a scheduler that stopped: %v", len(got), got)
				}
			}
		})
	}
}
