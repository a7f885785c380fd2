package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"time"

	"downbeat.dev/frontend/app"
)

// TestStatusShowsSessionsAndFrames shows promises and how they are kept, and each step of the latest frames within
// its frame.
func TestStatusShowsSessionsAndFrames(t *testing.T) {
	a, _ := open(t, application("z", ask("first", "double", "in", "y"), ask("last", "other", "y", "z")), doubled, app.Options{})
	set, err := app.NewSet(a)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gate", "bridge"} {
		s, err := a.Open(context.Background(), app.Session{Rate: 1e6, Lease: time.Hour, Name: name})
		if err != nil {
			t.Fatal(err)
		}
		for range 40 {
			r, err := s.Run(context.Background(), app.Frame{Inputs: [][]byte{{1, 0, 0, 0}}})
			if err != nil {
				t.Fatal(err)
			}
			r.Release()
		}
	}

	var text bytes.Buffer
	if err := set.WriteStatus(&text); err != nil {
		t.Fatal(err)
	}
	var status app.Status
	if err := json.Unmarshal(text.Bytes(), &status); err != nil {
		t.Fatal(err)
	}
	if len(status.Applications) != 1 {
		t.Fatalf("%d applications, want 1", len(status.Applications))
	}
	one := status.Applications[0]
	if len(one.Sessions) != 2 || one.Sessions[0].Name != "gate" || one.Sessions[1].Number != 2 || one.Sessions[1].InTime != 40 || one.Sessions[1].Rate != 1e6 || one.Frames != 80 {
		t.Errorf("%+v", one)
	}
	if len(one.Latest) != 64 || one.Latest[0].Session != 2 || one.Latest[63].Session != 1 {
		t.Fatalf("%d frames, want the latest 64, the newest first", len(one.Latest))
	}
	for _, f := range one.Latest {
		first, last := f.Steps[0], f.Steps[1]
		if first.From < 0 || first.To < first.From || last.From < first.To || last.To > f.Elapsed || first.Requests != 1 || first.End != "" {
			t.Errorf("%+v: want steps behind each other within the frame", f)
		}
	}
}
