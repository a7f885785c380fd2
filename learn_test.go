//go:build linux

package downbeat

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
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

	publish := store.Publisher(func(ctx context.Context, name, _ string, _ []byte) error { return s.Backend().LoadModel(ctx, name, "") })
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

// TestHalfAPublicationThenACrash: V5. One of two backends has loaded learnt weights when it dies; the other one goes on with those before, a
// new one begins with the learnt ones, and every answer is that of the version which it names.
func TestHalfAPublicationThenACrash(t *testing.T) {
	dir, recipe := trainable(t)
	if err := os.Remove(filepath.Join(dir, "vehicle-s", "training.json")); err != nil {
		t.Fatal(err)
	}
	c := Default()
	c.Models, c.HTTP, c.GRPC, c.Executors, c.Listen, c.Roles = dir, "127.0.0.1:0", "127.0.0.1:0", 1, "127.0.0.1:0", Scheduler|Gateway
	s := start(t, c)
	c.Scheduler = s.Config().Listen
	dies, kill := killable(t, c)
	stays, _ := killable(t, c)
	waitFor(t, func() bool { return s.capacity().GPUs == 2 })

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	asked := &outputsOfVersions{of: map[string][]byte{}}
	ended := make(chan struct{})
	go func() { asked.ask(ctx, s.Client()); close(ended) }()
	waitFor(t, func() bool { return asked.since("1") })

	// The weights of version 2 answer otherwise, so that whose answer it is shows.
	store := learn.OpenStore(dir, recipe.Net())
	_, weights, err := store.Newest()
	if err != nil {
		t.Fatal(err)
	}
	for i := range weights {
		weights[i] *= 0.9
	}
	if err := store.Publisher(dies.Backend().LoadLearnt)(learn.Version{Number: 2, Weights: weights}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return asked.since("2") })
	kill()
	waitFor(t, func() bool { return asked.since("1") })

	// What was learnt is in the repository, whole: it serves again, and the other half follows.
	killable(t, c)
	waitFor(t, func() bool { return asked.since("2") })
	if err := stays.Backend().LoadModel(t.Context(), "vehicle-s", ""); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		m := s.Client().Model("vehicle-s", "1")
		return (m == nil || !m.Ready) && asked.since("2")
	})
	stop()
	<-ended
	asked.report(t)
}

// outputsOfVersions asks with one input again and again, and compares the answers of each version with its first.
type outputsOfVersions struct {
	mu            sync.Mutex
	of            map[string][]byte
	latest        string
	answers, lost int
	wrong         []string
}

// since tells whether a version has answered since the last call.
func (x *outputsOfVersions) since(version string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	answered := x.latest == version
	x.latest = ""
	return answered
}

func (x *outputsOfVersions) ask(ctx context.Context, client *frontend.Client) {
	input, err := client.Buffer(32 * 48 * 3)
	if err != nil {
		x.wrong = append(x.wrong, err.Error())
		return
	}

	for ctx.Err() == nil {
		one, cancel := context.WithTimeout(context.Background(), time.Minute)
		r, err := client.Do(one, frontend.Request{Model: "vehicle-s", Input: input})
		cancel()
		x.mu.Lock()
		if err != nil {
			x.lost++
		} else {
			x.check(&r)
			r.Release()
		}
		x.mu.Unlock()
	}
}

// check compares an answer; x.mu is held.
func (x *outputsOfVersions) check(r *frontend.Result) {
	x.answers++
	x.latest = r.Version
	if first := x.of[r.Version]; first == nil {
		x.of[r.Version] = slices.Clone(r.Data)
	} else if !slices.Equal(first, r.Data) {
		x.wrong = append(x.wrong, "version "+r.Version+" answers otherwise than before")
	}
}

func (x *outputsOfVersions) report(t *testing.T) {
	t.Helper()
	t.Logf("%d answers of %d versions, %d requests without one", x.answers, len(x.of), x.lost)
	if len(x.wrong) > 0 || len(x.of) != 2 || slices.Equal(x.of["1"], x.of["2"]) {
		t.Errorf("%d versions; %d wrong answers, first %v", len(x.of), len(x.wrong), x.wrong[:min(1, len(x.wrong))])
	}
	if x.lost*100 > x.answers {
		t.Errorf("%d requests of %d got no answer", x.lost, x.answers+x.lost)
	}
}

// TestExitsServeWhatTheirModelHasLearnt: a version that is published is the exits' version, too, and a family's request is told
// the accuracy that the exit was judged to have.
func TestExitsServeWhatTheirModelHasLearnt(t *testing.T) {
	if _, err := ort.Open(""); errors.Is(err, ort.ErrMissing) {
		t.Skip(err)
	}
	for _, name := range []string{"vehicle-s", "vehicle-m", "vehicle-l"} {
		t.Run(name, func(t *testing.T) { publishWithExits(t, name) })
	}
}

// publishWithExits serves a model of the tree and its exits, publishes a version and asks all three.
func publishWithExits(t *testing.T, model string) {
	c := Default()
	c.Models, c.HTTP, c.GRPC, c.Executors = t.TempDir(), "127.0.0.1:0", "127.0.0.1:0", 1
	names := []string{model, model + "-exit1", model + "-exit2"}
	for _, name := range names {
		if err := os.CopyFS(filepath.Join(c.Models, name), os.DirFS(filepath.Join("models", name))); err != nil {
			t.Fatal(err)
		}
	}
	s := start(t, c)

	recipe, _ := models.Find(model)
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
		if name == model {
			whole = r.Accuracy
		}
		gaps[name] = whole - r.Accuracy
	}
	if math.Abs(gaps[names[1]]-0.25) > 1e-3 || math.Abs(gaps[names[2]]-0.125) > 1e-3 {
		t.Errorf("of version 2 the exits are said to be worse by %v, want 0.25 and 0.125", gaps)
	}
}
