//go:build linux

package downbeat

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/backend/learn"
	"downbeat.dev/backend/ort"
	"downbeat.dev/frontend"
	"downbeat.dev/models"
)

// TestLearntVersionsArePublishedUnderLoad: every request is answered meanwhile, by one version that its answer names, and
// never by an older one than the answer before.
func TestLearntVersionsArePublishedUnderLoad(t *testing.T) {
	if _, err := ort.Open(""); errors.Is(err, ort.ErrMissing) {
		t.Skip(err)
	}
	c := Default()
	c.Models, c.HTTP, c.GRPC, c.Executors = t.TempDir(), "127.0.0.1:0", "127.0.0.1:0", 2
	if err := os.CopyFS(filepath.Join(c.Models, "vehicle-s"), os.DirFS("models/vehicle-s")); err != nil {
		t.Fatal(err)
	}
	s := start(t, c)

	recipe, _ := models.Find("vehicle-s")
	store := learn.OpenStore(c.Models, recipe.Net())
	version, weights, err := store.Newest()
	if err != nil {
		t.Fatal(err)
	}
	var answered atomic.Int64 // the version of the latest answer
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- askOn(ctx, s.Client(), &answered) }()

	publish := store.Publisher(s.Backend().LoadModel)
	for next := version; next <= version+2; next++ {
		if next > version {
			weights[0] += 1e-3
			if err := publish(learn.Version{Number: next, Weights: weights}); err != nil {
				t.Fatal(err)
			}
		}
		waitFor(t, func() bool { return answered.Load() == int64(next) || len(ended) > 0 })
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// askOn asks one request after another and notes the version of each answer.
func askOn(ctx context.Context, client *frontend.Client, answered *atomic.Int64) error {
	h, w := 32, 48
	input, err := client.Buffer(h * w * 3)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		one, cancel := context.WithTimeout(context.Background(), time.Minute)
		r, err := client.Do(one, frontend.Request{Model: "vehicle-s", Input: input})
		cancel()
		if err != nil {
			return err
		}
		version, err := strconv.ParseInt(r.Version, 10, 64)
		r.Release()
		if err != nil || version < answered.Load() {
			return errors.Join(err, errors.New("an answer of version "+r.Version+" after a later one"))
		}
		answered.Store(version)
	}
	return nil
}

// TestExitsServeWhatTheirModelHasLearnt: a version that is published is the exits' version, too, and a family's request is told
// the accuracy that the exit was judged to have.
func TestExitsServeWhatTheirModelHasLearnt(t *testing.T) {
	if _, err := ort.Open(""); errors.Is(err, ort.ErrMissing) {
		t.Skip(err)
	}
	c := Default()
	c.Models, c.HTTP, c.GRPC, c.Executors = t.TempDir(), "127.0.0.1:0", "127.0.0.1:0", 1
	names := []string{"vehicle-l", "vehicle-l-exit1", "vehicle-l-exit2"}
	for _, name := range names {
		if err := os.CopyFS(filepath.Join(c.Models, name), os.DirFS(filepath.Join("models", name))); err != nil {
			t.Fatal(err)
		}
	}
	s := start(t, c)

	recipe, _ := models.Find("vehicle-l")
	store := learn.OpenStore(c.Models, recipe.Structure())
	_, weights, err := store.Newest()
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Publisher(s.Backend().LoadLearnt)(learn.Version{Number: 2, Weights: weights, ExitGaps: []float64{0.25, 0.125}}); err != nil {
		t.Fatal(err)
	}

	input, err := s.Client().Buffer(32 * 48 * 3)
	if err != nil {
		t.Fatal(err)
	}
	gaps := map[string]float64{}
	var whole float64
	for _, name := range names {
		var r frontend.Result
		waitFor(t, func() bool {
			one, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if r, err = s.Client().Do(one, frontend.Request{Model: name, Input: input}); err != nil {
				return false
			}
			defer r.Release()
			return r.Version == "2"
		})
		if name == "vehicle-l" {
			whole = r.Accuracy
		}
		gaps[name] = whole - r.Accuracy
	}
	if math.Abs(gaps[names[1]]-0.25) > 1e-3 || math.Abs(gaps[names[2]]-0.125) > 1e-3 {
		t.Errorf("of version 2 the exits are said to be worse by %v, want 0.25 and 0.125", gaps)
	}
}
