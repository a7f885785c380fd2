package sched

import (
	"testing"
	"time"
)

// TestLongBatchesLeaveRoomForShortSLOs shows that a service with long batches takes its lighter variant where a service
// with a short SLO loses requests otherwise. After two seconds, hardly any of these are dropped.
func TestLongBatchesLeaveRoomForShortSLOs(t *testing.T) {
	short := Service{SLO: 20 * ms, Rate: 500, Variants: []Variant{{Accuracy: 1}}}
	long := Service{SLO: 2000 * ms, Rate: 500, Variants: []Variant{{Accuracy: 0.8}, {Accuracy: 1}}}
	s := New(Options{})
	addInTwoHomes(t, s, 0, short, 2*time.Millisecond)
	addInTwoHomes(t, s, 1, long, 10*time.Millisecond, 200*time.Millisecond)
	for g := range 8 {
		if err := s.AddGPU(0, GPUID(g), uint32(g%2)); err != nil {
			t.Fatal(err)
		}
	}

	// Every 2 ms each service gets a request, and whatever is due by then is done.
	late, answered := make(map[ModelID]int), make(map[ModelID]int)
	for i := range 5000 {
		now, m, slo := Time(i*int(ms)), ModelID(i%2), []Duration{short.SLO, long.SLO}[i%2]
		for at := s.NextWake(); at <= now; at = s.NextWake() {
			s.Advance(at)
			batches, drops := s.Actions()
			for _, d := range drops {
				if i >= 2000 {
					late[d.Request.Model]++
				}
			}
			for _, b := range batches {
				answered[b.Model] += len(b.Requests)
				if err := s.Complete(at, b.ID, b.GPU, b.Finish); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.Join(now, Request{ID: RequestID(i + 1), Model: m, Deadline: now.Add(slo)})
	}

	if late[0] > 15 || late[1] > 0 || answered[1] < 1000 {
		t.Errorf("late %v, answered %v: want at most 1 %% of 1,500 requests with a short SLO late, and none of the others", late, answered)
	}
}

// addInTwoHomes adds a service in sub-clusters 0 and 1, with a variant for each time of a batch of one.
func addInTwoHomes(t *testing.T, s *Scheduler, id ModelID, v Service, first ...time.Duration) {
	t.Helper()
	v.Homes = []uint32{0, 1}
	for i, one := range first {
		p := line(t, one/10, one, 16)
		v.Variants[i].Profiles = append(v.Variants[i].Profiles, p, p)
	}
	if err := s.AddService(0, id, v); err != nil {
		t.Fatal(err)
	}
}
