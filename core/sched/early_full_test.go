package sched

import (
	"testing"
	"time"

	vocabulary "downbeat.dev/core/model"
)

// TestEarlyRequestsOfOneSessionLeaveRoom: a session whose hooks take an hour fills a model's early places. Another
// session's early request, whose input is there sooner, takes the place of the one that would join last.
func TestEarlyRequestsOfOneSessionLeaveRoom(t *testing.T) {
	p := NewPartition(Options{})
	p.SetGPUs(0, 0, 1)
	if err := p.AddModel(0, 1, Model{Profile: line(t, time.Millisecond, 0, 4), SLO: 100 * ms}); err != nil {
		t.Fatal(err)
	}
	hour := Time(3_600_000 * ms)
	for i := range earlyMax {
		r, why := p.AdmitEarly(0, 1, hour, 0, hour-Time(50*ms))
		if r == nil {
			t.Fatalf("early request %d of the first session: %v", i, why)
		}
		r.ID, r.Origin = RequestID(i), 1
	}

	r, why := p.AdmitEarly(0, 1, Time(50*ms), 0, Time(10*ms))
	if r == nil {
		t.Fatalf("the other session's early request: %v", why)
	}
	r.ID, r.Origin = 7, 2
	if d := p.Outputs().Drops; len(d) != 1 || d[0].Origin != 1 || d[0].Reason != vocabulary.QueueFull {
		t.Errorf("gave way: %+v, want one request of the first session", d)
	}
	if _, why := p.AdmitEarly(0, 1, hour+Time(100*ms), 0, hour); why != vocabulary.QueueFull {
		t.Errorf("one that would join last of all: %v, want a refusal", why)
	}
	if n := len(*p.earlyOf[1]); n != earlyMax {
		t.Errorf("%d early requests, want %d", n, earlyMax)
	}
}

// TestEarlyRequestsLeaveNoMemory: a model that is removed when no request is early leaves no list behind, and a list that
// was long gives its memory back.
func TestEarlyRequestsLeaveNoMemory(t *testing.T) {
	p := NewPartition(Options{})
	p.SetGPUs(0, 0, 1)
	for id := ModelID(1); id <= 2; id++ {
		if err := p.AddModel(0, id, Model{Profile: line(t, time.Millisecond, 0, 4), SLO: 100 * ms}); err != nil {
			t.Fatal(err)
		}
		for i := range 2000 {
			r, why := p.AdmitEarly(0, id, Time(90*ms), 0, Time(10*ms))
			if r == nil {
				t.Fatal(why)
			}
			r.ID, r.Origin = RequestID(i), 1
		}
		for i := range 2000 {
			if !p.Cancel(0, id, RequestID(i), 1) {
				t.Fatalf("request %d is not early", i)
			}
		}
		if n := cap(*p.earlyOf[id]); n > earlyKept {
			t.Errorf("model %d: room for %d early requests is kept", id, n)
		}
		p.RemoveModel(0, id)
	}
	if n := len(p.earlyOf); n != 0 {
		t.Errorf("%d lists of models that have gone", n)
	}
}
