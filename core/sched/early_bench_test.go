package sched

import (
	"fmt"
	"testing"
	"time"

	vocabulary "downbeat.dev/core/model"
)

const earlyHour = Time(3_600_000 * ms)

// BenchmarkEarly measures calls while n other requests of the model are early.
func BenchmarkEarly(b *testing.B) {
	calls := []struct {
		name string
		call func(s *Scheduler, n, i int)
	}{
		{"duplicate", func(s *Scheduler, n, i int) { s.part.Holds(1, RequestID(i%n), 1) }},
		{"join last", func(s *Scheduler, _, _ int) { // as most do, because most hooks of a model take about equally long
			addEarly(s, earlyMax, 2*earlyHour, 2*earlyHour-Time(2*ms))
			s.Cancel(0, 1, earlyMax, 1)
		}},
		{"join first", func(s *Scheduler, _, _ int) {
			addEarly(s, earlyMax, earlyHour, earlyHour/4)
			s.Cancel(0, 1, earlyMax, 1)
		}},
		{"hasten", func(s *Scheduler, n, _ int) {
			addEarly(s, earlyMax, earlyHour, earlyHour/2+Time(n/2))
			s.part.Hasten(0, 1, earlyMax, 1)
			s.Cancel(0, 1, earlyMax, 1)
		}},
		{"full queue", func(s *Scheduler, _, i int) { // each takes another one's room
			addEarly(s, earlyMax+RequestID(i), earlyHour-Time(i), earlyHour/2)
			s.Actions()
		}},
	}
	for _, n := range []int{1, 100, earlyMax - 1} {
		for _, c := range calls {
			b.Run(fmt.Sprintf("%s/%d", c.name, n), func(b *testing.B) {
				queueMax := 0
				if c.name == "full queue" {
					queueMax = n
				}
				s := schedulerWithEarly(b, n, queueMax)
				b.ReportAllocs()
				b.ResetTimer()
				for i := range b.N {
					c.call(s, n, i)
				}
			})
		}
	}
}

// schedulerWithEarly returns a scheduler with n early requests of model 1.
func schedulerWithEarly(b testing.TB, n, queueMax int) *Scheduler {
	s := New(Options{})
	if err := s.AddGPU(0, 0, 0); err != nil {
		b.Fatal(err)
	}
	if err := s.AddModel(0, 1, Model{Profile: line(b, time.Millisecond, 0, 4), SLO: 100 * ms, QueueMax: queueMax}); err != nil {
		b.Fatal(err)
	}
	for i := range n {
		if why := addEarly(s, RequestID(i), earlyHour+Time(i), earlyHour/2+Time(i)); why != vocabulary.ReasonNone {
			b.Fatal(why)
		}
	}
	return s
}

// addEarly adds an early request of model 1.
func addEarly(s *Scheduler, id RequestID, deadline, from Time) vocabulary.Reason {
	return s.JoinEarly(0, Request{ID: id, Origin: 1, Model: 1, Deadline: deadline}, from)
}
