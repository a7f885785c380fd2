package app_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"downbeat.dev/frontend/app"
)

func TestSessionsKeepStateRateAndLease(t *testing.T) {
	a, _ := open(t, application("parts", split("in", "parts", 8)), doubled, app.Options{StreamsMax: 2})
	s, err := a.Open(context.Background(), app.Session{Rate: 1e6, Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if s.Session().Latency != long {
		t.Errorf("latency %v, want the application's", s.Session().Latency)
	}

	// The hook counts the session's frames, and begins again without a session.
	for i := range byte(3) {
		r, err := s.Run(context.Background(), app.Frame{Inputs: [][]byte{{1, 0, 0, 0}}})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Outputs[0][0][1]; got != i {
			t.Errorf("frame %d: the hook has seen %d", i, got)
		}
		r.Release()
	}
	r, err := a.Run(context.Background(), app.Frame{Inputs: [][]byte{{1, 0, 0, 0}}})
	if err != nil || r.Outputs[0][0][1] != 0 {
		t.Errorf("%v, %v; want no state of another's session", r, err)
	}
	r.Release()

	// A session with a promised frame every quarter of an hour may send a few early, but no more.
	slow, err := a.Open(context.Background(), app.Session{Rate: 0.001, Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	early := 0
	for range 20 {
		r, err := slow.Run(context.Background(), app.Frame{Inputs: [][]byte{{1, 0, 0, 0}}})
		if err == nil {
			early++
			r.Release()
		} else if !errors.Is(err, app.ErrTooFast) {
			t.Fatal(err)
		}
	}
	if early < 2 || early > 5 {
		t.Errorf("%d frames at once, want a few", early)
	}

	if _, err := a.Open(context.Background(), app.Session{Rate: 1}); !errors.Is(err, app.ErrSessions) {
		t.Errorf("error %v, want that there are too many", err)
	}
	slow.Close()
	slow.Close()
	if _, err := slow.Run(context.Background(), app.Frame{Inputs: [][]byte{{1, 0, 0, 0}}}); !errors.Is(err, app.ErrClosed) {
		t.Errorf("error %v, want ErrClosed", err)
	}

	// A session that nobody closes is closed at the end of its lease.
	if _, err := a.Open(context.Background(), app.Session{Rate: 1, Lease: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return a.Sessions() == 1 })
	checkCounts(t, a)
}

func TestSessionsAreChecked(t *testing.T) {
	a, _ := open(t, application("parts", split("in", "parts", 8)), doubled, app.Options{})
	for want, s := range map[string]app.Session{
		"rate 0: want more than 0":                       {},
		"rate -5: want more than 0":                      {Rate: -5},
		"rate NaN: want":                                 {Rate: math.NaN()},
		"rate +Inf: want":                                {Rate: math.Inf(1)},
		"latency -1ns: want":                             {Rate: 1, Latency: -1},
		"latency 24h0m0s: want":                          {Rate: 1, Latency: 24 * time.Hour},
		"floor 1.5: want 0 to 1":                         {Rate: 1, Floor: 1.5},
		"lease -1ns: want more than 0":                   {Rate: 1, Lease: -1},
		"floor NaN: want 0 to 1":                         {Rate: 1, Floor: math.NaN()},
		"rate 1e+07: want more than 0 and at most 1e+06": {Rate: 1e7},
		"least rate -1: want 0 to the rate, 5":           {Rate: 5, LeastRate: -1},
		"least rate NaN: want 0 to the rate, 5":          {Rate: 5, LeastRate: math.NaN()},
		"name of 129 bytes: want at most 128":            {Rate: 1, Name: strings.Repeat("x", 129)},
	} {
		if _, err := a.Open(context.Background(), s); !errors.Is(err, app.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := a.Open(ctx, app.Session{Rate: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the caller's", err)
	}
}
