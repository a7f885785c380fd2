package sched

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	vocabulary "downbeat.dev/core/model"
	"downbeat.dev/core/profile"
)

const ms Duration = 1_000_000

func line(t testing.TB, alpha, beta time.Duration, batchMax int) *profile.Profile {
	t.Helper()
	p, err := profile.Linear(alpha, beta, batchMax)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// checker follows the outputs of a Scheduler and fails on a broken invariant.
type checker struct {
	t        testing.TB
	live     map[RequestID]Request
	busy     map[GPUID]Time // Finish of the GPU's latest batch
	running  []Batch        // without a completion, in order of dispatch
	profiles map[ModelID]*profile.Profile
	served   int
	dropped  int
}

func newChecker(t testing.TB) *checker {
	return &checker{t: t, live: map[RequestID]Request{}, busy: map[GPUID]Time{}, profiles: map[ModelID]*profile.Profile{}}
}

func (c *checker) take(now Time, s *Scheduler) {
	c.t.Helper()
	batches, drops := s.Actions()
	for _, b := range batches {
		n := len(b.Requests)
		if p := c.profiles[b.Model]; n == 0 || n > p.Max() || b.Finish != b.ExecAt.Add(Duration(p.Exec(n))) {
			c.t.Fatalf("I4: batch %+v", b)
		}
		if b.ExecAt < now || b.ExecAt > b.Latest {
			c.t.Fatalf("I3: at %d batch %+v", now, b)
		}
		if b.ExecAt < c.busy[b.GPU] {
			c.t.Fatalf("I2: gpu %d is busy until %d: batch %+v", b.GPU, c.busy[b.GPU], b)
		}
		c.busy[b.GPU] = b.Finish
		for i := range n {
			id := b.Requests[i].ID
			r, ok := c.live[id]
			if !ok || r.Model != b.Model || r.Deadline < b.Finish {
				c.t.Fatalf("I1: request %d (%+v) in batch %+v", id, r, b)
			}
			delete(c.live, id)
			c.served++
		}
		b.Requests = nil
		c.running = append(c.running, b)
	}
	for _, d := range drops {
		if _, ok := c.live[d.ID]; !ok || d.Reason == vocabulary.ReasonNone {
			c.t.Fatalf("I1: drop %+v", d)
		}
		delete(c.live, d.ID)
		c.dropped++
	}
}

// finish returns the running batch that finishes first; -1 if there is none.
func (c *checker) finish() int {
	best := -1
	for i, b := range c.running {
		if best < 0 || b.Finish < c.running[best].Finish {
			best = i
		}
	}
	return best
}

// drive runs Poisson arrivals of equal rates over n models for span, and completes batches on time.
func drive(t testing.TB, s *Scheduler, c *checker, models int, slo Duration, perSecond float64, span Duration, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	next := Time(0)
	id := RequestID(0)
	for now := Time(0); ; {
		now = min(next, s.NextWake())
		if f := c.finish(); f >= 0 {
			now = min(now, c.running[f].Finish)
		}
		if now == Never {
			break
		}
		for f := c.finish(); f >= 0 && c.running[f].Finish <= now; f = c.finish() {
			b := c.running[f]
			c.running = append(c.running[:f], c.running[f+1:]...)
			if err := s.Complete(now, b.ID, b.GPU, b.Finish); err != nil {
				t.Fatal(err)
			}
			c.take(now, s)
		}
		if now == next {
			id++
			r := Request{ID: id, Model: ModelID(rng.IntN(models)), Deadline: now.Add(slo)}
			c.live[id] = r
			if why := s.Enqueue(now, r); why != vocabulary.ReasonNone {
				delete(c.live, id)
				c.dropped++
			}
			c.take(now, s)
			next = now.Add(Duration(rng.ExpFloat64() * 1e9 / perSecond))
			if next > Time(span) {
				next = Never
			}
		}
		if s.NextWake() <= now {
			s.Advance(now)
			c.take(now, s)
		}
	}
	if len(c.live) > 0 {
		t.Fatalf("I1: %d requests without an end", len(c.live))
	}
}

func TestInvariantsUnderLoad(t *testing.T) {
	for _, load := range []float64{50, 4000, 12000} {
		for _, delay := range []Duration{0, ms / 10} {
			t.Run(fmt.Sprintf("load=%v/delay=%d", load, delay), func(t *testing.T) {
				s, c := New(Options{Ctrl: delay, Data: delay / 4}), newChecker(t)
				if delay > 0 {
					s.part.near = 0 // queues hand their memory over
				}
				for m := ModelID(0); m < 5; m++ {
					p := line(t, time.Millisecond, 5*time.Millisecond, 20)
					c.profiles[m] = p
					if err := s.AddModel(0, m, Model{Profile: p, SLO: 30 * ms}); err != nil {
						t.Fatal(err)
					}
				}
				for g := GPUID(0); g < 8; g++ {
					if err := s.AddGPU(0, g, 0); err != nil {
						t.Fatal(err)
					}
				}
				drive(t, s, c, 5, 30*ms, load, 2000*ms, 1)
				st, rs := s.Stats()
				t.Logf("served %d dropped %d stats %+v %+v", c.served, c.dropped, st, rs)
				if st.ClockBack+rs.ClockBack != 0 || rs.Stalled != 0 || rs.Stale != 0 {
					t.Errorf("stats %+v %+v", st, rs)
				}
				if load < 5000 && c.dropped > c.served/50 {
					t.Errorf("dropped %d of %d below the capacity", c.dropped, c.served+c.dropped)
				}
				if load > 5000 && c.served < 9000 {
					t.Errorf("served %d under overload, want a flat top", c.served)
				}
			})
		}
	}
}

// TestActionsKeepWhatJoined: a driver may ask for actions between Join and Advance, whether there are any or not.
func TestActionsKeepWhatJoined(t *testing.T) {
	s := New(Options{})
	p := line(t, time.Millisecond, time.Millisecond, 1)
	for id := range 2 {
		if err := s.AddModel(0, ModelID(id), Model{Profile: p, SLO: 100 * ms}); err != nil {
			t.Fatal(err)
		}
		if err := s.AddGPU(0, GPUID(id), 0); err != nil {
			t.Fatal(err)
		}
	}

	// After the first request has joined there is nothing to do; after the second, the first model's batch is sent.
	for id := range 2 {
		s.Join(1, Request{ID: RequestID(id), Model: ModelID(id), Deadline: Time(100 * ms)})
		if batches, _ := s.Actions(); len(batches) != id {
			t.Fatalf("request %d has joined: %d batches, want %d", id, len(batches), id)
		}
		if id == 0 {
			s.Advance(1)
		}
	}

	s.Advance(1)
	if batches, _ := s.Actions(); len(batches) != 1 || batches[0].Model != 1 {
		t.Errorf("after both: %+v, want a batch of model 1", batches)
	}
}
