package sched

import (
	"math/rand/v2"
	"testing"
	"time"

	vocabulary "downbeat.dev/core/model"
)

// TestEarlyRequestsOfOneSessionLeaveRoom: a session whose hooks take an hour fills a model's early places. Another
// session's early request, whose deadline is earlier, takes the place of one of them.
func TestEarlyRequestsOfOneSessionLeaveRoom(t *testing.T) {
	p := NewPartition(Options{})
	p.SetGPUs(0, 0, 1)
	if err := p.AddModel(0, 1, Model{Profile: line(t, time.Millisecond, 0, 4), SLO: 100 * ms}); err != nil {
		t.Fatal(err)
	}
	hour := Time(3_600_000 * ms)
	for i := range earlyMax {
		r := Request{ID: RequestID(i), Origin: 1, Model: 1, Deadline: hour}
		if why := p.AdmitEarly(0, &r, hour-Time(50*ms)); why != vocabulary.ReasonNone {
			t.Fatalf("early request %d of the first session: %v", i, why)
		}
	}

	r := Request{ID: 7, Origin: 2, Model: 1, Deadline: Time(50 * ms)}
	if why := p.AdmitEarly(0, &r, Time(10*ms)); why != vocabulary.ReasonNone {
		t.Fatalf("the other session's early request: %v", why)
	}
	if d := p.Outputs().Drops; len(d) != 1 || d[0].Origin != 1 || d[0].Reason != vocabulary.QueueFull {
		t.Errorf("gave way: %+v, want one request of the first session", d)
	}
	r.ID, r.Deadline = 8, hour+Time(100*ms)
	if why := p.AdmitEarly(0, &r, hour); why != vocabulary.QueueFull {
		t.Errorf("one with the latest deadline of all: %v, want a refusal", why)
	}
	if n := p.earlyOf[1].len(); n != earlyMax {
		t.Errorf("%d early requests, want %d", n, earlyMax)
	}
}

// TestEarlyRequestsLeaveNoMemory: a model that is removed when no request is early leaves no queue behind, and a queue that
// was long gives its memory back.
func TestEarlyRequestsLeaveNoMemory(t *testing.T) {
	p := NewPartition(Options{})
	p.SetGPUs(0, 0, 1)
	for id := ModelID(1); id <= 2; id++ {
		if err := p.AddModel(0, id, Model{Profile: line(t, time.Millisecond, 0, 4), SLO: 100 * ms}); err != nil {
			t.Fatal(err)
		}
		for i := range 2000 {
			r := Request{ID: RequestID(i), Origin: 1, Model: id, Deadline: Time(90 * ms)}
			if why := p.AdmitEarly(0, &r, Time(10*ms)); why != vocabulary.ReasonNone {
				t.Fatal(why)
			}
		}
		for i := range 2000 {
			if !p.Cancel(0, id, RequestID(i), 1) {
				t.Fatalf("request %d is not early", i)
			}
		}
		if n := cap(p.earlyOf[id].heap); n > earlyKept {
			t.Errorf("model %d: room for %d early requests is kept", id, n)
		}
		p.RemoveModel(0, id)
	}
	if n := len(p.earlyOf); n != 0 {
		t.Errorf("%d queues of models that have gone", n)
	}
}

// TestEarlyRequestsAreFoundByID: each early request ends once, whatever order they came in and whether ids repeat: a
// duplicate is found, a cancel finds one request, and the end of a session finds all of its own.
func TestEarlyRequestsAreFoundByID(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	p, held := schedulerWithEarly(t, 0, 0).part, map[earlyID]int{}
	for range 2000 {
		x := Request{ID: RequestID(r.IntN(1500)), Origin: uint32(r.IntN(3)), Model: 1, Deadline: earlyHour + Time(r.IntN(1000))}
		if why := p.AdmitEarly(0, &x, earlyHour/2+Time(r.IntN(1000))); why != vocabulary.ReasonNone {
			t.Fatal(why)
		}
		held[earlyID{x.ID, x.Origin}]++
	}

	for i := range RequestID(1600) {
		x := earlyID{i, uint32(i) % 3}
		if p.Holds(1, x.id, x.origin) != (held[x] > 0) {
			t.Fatalf("request %v is held: %v, want %d", x, held[x] == 0, held[x])
		}
		if p.Cancel(0, 1, x.id, x.origin) != (held[x] > 0) {
			t.Fatalf("request %v is canceled: %v, want %d", x, held[x] == 0, held[x])
		}
		held[x] = max(0, held[x]-1)
	}

	for origin := range uint32(3) {
		p.Outputs().Reset()
		p.CancelAll(0, 1, origin)
		for _, d := range p.Outputs().Drops {
			if d.Origin != origin || d.Reason != vocabulary.Canceled {
				t.Fatalf("the end of session %d drops %+v", origin, d)
			}
			held[earlyID{d.ID, d.Origin}]--
		}
	}
	for x, n := range held {
		if n != 0 {
			t.Errorf("%d requests %v are left", n, x)
		}
	}
	if n := p.Queued(1); n != 0 {
		t.Errorf("%d requests are queued", n)
	}
}

// TestWhichEarlyRequestGivesWay: in a full queue it is the least important one, and of these the one with the latest
// deadline, if it matters less than the new one or has a later deadline.
func TestWhichEarlyRequestGivesWay(t *testing.T) {
	for _, c := range []struct {
		deadline Time
		priority Priority
		victim   RequestID // 0: the new one is refused
	}{
		{earlyHour + 5, 0, 2}, {earlyHour + 20, 0, 0}, {earlyHour + 30, 0, 0}, {earlyHour + 90, 1, 2}, {earlyHour, 3, 2},
	} {
		s := schedulerWithEarly(t, 0, 3)
		for i, x := range []Request{{Deadline: earlyHour + 10}, {Deadline: earlyHour + 20}, {Deadline: earlyHour + 50, Priority: 2}} {
			x.ID, x.Model = RequestID(i+1), 1
			s.JoinEarly(0, x, earlyHour/2-Time(i))
		}

		why := s.JoinEarly(0, Request{ID: 9, Model: 1, Deadline: c.deadline, Priority: c.priority}, earlyHour/2)
		_, drops := s.Actions()
		switch {
		case c.victim == 0 && (why != vocabulary.QueueFull || len(drops) > 0):
			t.Errorf("%+v: %v, dropped %+v, want a refusal", c, why, drops)
		case c.victim != 0 && (why != vocabulary.ReasonNone || len(drops) != 1 || drops[0].ID != c.victim || drops[0].Reason != vocabulary.QueueFull):
			t.Errorf("%+v: %v, dropped %+v", c, why, drops)
		}
	}
}

// TestEarlyRequestsAllocateNothing: once a queue has had as many requests, others take their memory.
func TestEarlyRequestsAllocateNothing(t *testing.T) {
	s := schedulerWithEarly(t, 1000, 0)
	id := RequestID(0)
	if n := testing.AllocsPerRun(5000, func() {
		s.Cancel(0, 1, id, 1)
		addEarly(s, id+1000, earlyHour, earlyHour/2+Time(id%7))
		id++
	}); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
}

// TestEarlyRequestsStayAtAHandover: a model whose requests are all early takes over another partition's measurements and
// keeps them.
func TestEarlyRequestsStayAtAHandover(t *testing.T) {
	s := schedulerWithEarly(t, 100, 0)
	s.part.Learn(0, 1, Learned{Rate: 500})
	if l := s.part.Learned(1); l.Rate < 499 || l.Rate > 501 {
		t.Errorf("learned %+v, want 500 requests/s", l)
	}
	for i := range RequestID(100) {
		if !s.Cancel(0, 1, i, 1) {
			t.Fatalf("request %d is not queued", i)
		}
	}
}

// TestEarlyRequestsJoinInSteps: however many requests become ready at one moment, a call lets few of them join, some of each
// model, and the calls that NextWake asks for let all of them join at that moment.
func TestEarlyRequestsJoinInSteps(t *testing.T) {
	const models, each = 8, 1000
	p := NewPartition(Options{})
	p.SetGPUs(0, 0, 1)
	for m := range ModelID(models) {
		if err := p.AddModel(0, m, Model{Profile: line(t, time.Millisecond, 0, 4), SLO: 100 * ms}); err != nil {
			t.Fatal(err)
		}
		for i := range RequestID(each) {
			r := Request{ID: i, Origin: 1, Model: m, Deadline: earlyHour}
			if why := p.AdmitEarly(0, &r, Time(10*ms)); why != vocabulary.ReasonNone {
				t.Fatal(why)
			}
		}
	}

	for early := p.early; p.early > 0; early = p.early {
		if at := p.NextWake(); at > Time(10*ms) {
			t.Fatalf("%d requests are ready, the next call is to be at %d", p.early, at)
		}
		p.Advance(Time(10 * ms))
		if n := early - p.early; n == 0 || n > searchMax {
			t.Fatalf("%d requests joined in one call, want 1 to %d", n, searchMax)
		}
		for m := range ModelID(models) {
			if n := p.earlyOf[m].len(); n > (p.early+models-1)/models {
				t.Fatalf("%d of %d early requests are of model %d", n, p.early, m)
			}
		}
	}
}
