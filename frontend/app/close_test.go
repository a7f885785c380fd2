package app

import (
	"errors"
	"testing"
	"time"

	graph "downbeat.dev/core/app"
	"downbeat.dev/core/model"
	"downbeat.dev/core/profile"
)

// TestAnAppIsClosedBeforeASessionIsDecidedAbout: an App that is closed between the count of a session and its
// admission leaves no promise behind. Another App that shares the admission would pay for it for ever.
func TestAnAppIsClosedBeforeASessionIsDecidedAbout(t *testing.T) {
	one, err := profile.Linear(4*time.Millisecond, 6*time.Millisecond, 8)
	if err != nil {
		t.Fatal(err)
	}
	gate := NewAdmission(func() graph.Capacity { return graph.Capacity{GPUs: 1, Hop: time.Millisecond} }, nil)
	a, err := New(nil, oneStage(t), Options{Profiles: func(int) *profile.Profile { return one }, Admission: gate})
	if err != nil {
		t.Fatal(err)
	}

	stream := &Stream{app: a, session: Session{Rate: 1, Latency: time.Second, Lease: time.Hour}, rate: 1}
	if err := a.streams.addStream(stream); err != nil {
		t.Fatal(err)
	}
	a.Close()
	if s, err := a.startStream(stream); s != nil || !errors.Is(err, ErrClosed) {
		t.Errorf("opened %v, %v: want ErrClosed", s, err)
	}
	if len(gate.streams) != 0 || len(gate.promises) != 0 {
		t.Errorf("%d sessions with %d promises are left, want none", len(gate.streams), len(gate.promises))
	}
}

// oneStage returns an application of one model.
func oneStage(t *testing.T) *Graph {
	of := func(name string) model.Tensor {
		return model.Tensor{Name: name, Datatype: model.Uint8, Shape: []int64{4}}
	}
	g, err := graph.Resolve(graph.Application{
		Name: "shop", Latency: time.Second,
		Inputs:  []graph.Tensor{{Tensor: of("in")}},
		Outputs: []graph.Output{{Name: "out", Of: "y"}},
		Stages: []graph.Stage{{Name: "first", Model: "m", Takes: []graph.Flow{{Port: "x", Tensor: "in"}},
			Gives: []graph.Flow{{Port: "y", Tensor: "y"}}}},
	}, func(string, string) (graph.Signature, error) {
		return graph.Signature{Inputs: []model.Tensor{of("x")}, Outputs: []model.Tensor{of("y")}, SLO: time.Second}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}
