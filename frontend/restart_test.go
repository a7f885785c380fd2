package frontend_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/internal/echo"
	"downbeat.dev/internal/sicklink"
	"downbeat.dev/rdma"
)

// asked is the number of requests in flight in each process: enough that ids that began at the same number would
// collide.
const asked = 64

// askHeld begins requests for the input x that the system holds back. It returns their ids and their results.
func askHeld(t *testing.T, c *frontend.Client, s *echo.System, x byte) (ids []uint64, results chan frontend.Result) {
	t.Helper()
	s.Hold()
	results = make(chan frontend.Result, asked)
	for range asked {
		b, err := c.Buffer(4)
		if err != nil {
			t.Fatal(err)
		}
		copy(b.Bytes(), []byte{x, x, x, x})
		go func() {
			r, err := c.Infer(context.Background(), "double", b)
			b.Free() // before its end is reported: the last buffer keeps the address of a client that was closed
			if err != nil {
				r.Data = []byte(err.Error())
			}
			results <- r
		}()
	}

	for len(s.Waiting()) < asked {
		time.Sleep(time.Millisecond)
	}
	for _, m := range s.Waiting() {
		ids = append(ids, m.ID)
	}
	return ids, results
}

// TestRestartedFrontendHearsNothingMeantForTheOneBefore: a frontend dies unnoticed and another process starts at its
// address, as with a fixed port. Answers to requests of the first must not become answers of the second, whether they
// come from a backend that still knows only the first or from one that knows both.
func TestRestartedFrontendHearsNothingMeantForTheOneBefore(t *testing.T) {
	data := frontend.DataPlane{Listen: sicklink.FreeAddr(t), Providers: []string{"tcp"}}
	backend, err := echo.New([]model.Info{double}, doubled)
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	before, err := frontend.Dial(context.Background(), frontend.Options{Data: data, Scheduler: backend.Addr})
	if err != nil {
		t.Fatal(err)
	}
	old, ended := askHeld(t, before, backend, 1)
	before.Close()
	for range asked {
		<-ended
	}

	after, other := open(t, doubled, frontend.Options{Data: data})
	_, results := askHeld(t, after, other, 50)
	foreign := []byte{2, 2, 2, 2}
	for _, id := range old {
		if err := backend.Send(id, foreign); !errors.Is(err, rdma.ErrPeerLost) {
			t.Errorf("a backend of the process before sends to the one after: %v", err)
			break
		}
	}
	for _, id := range old {
		if err := other.Send(id, foreign); err != nil {
			t.Fatal(err)
		}
	}
	for after.Stats().Strays < asked && len(results) == 0 {
		time.Sleep(time.Millisecond)
	}
	if n := len(results); n > 0 {
		t.Errorf("%d requests ended with another process's output", n)
	}

	other.Serve()
	for range asked {
		if r := <-results; len(r.Data) != 4 || r.Data[0] != 100 {
			t.Errorf("output % x, want 64 64 64 64", r.Data)
		}
	}
}
