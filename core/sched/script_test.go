package sched

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestScripts runs the scenarios of testdata: one rule each, named by what happens. Rewrite them
// with -rewrite; commit only a difference that you can explain.
//
//	new [ctrl=D] [data=D] [prompt=F]
//	model id=N alpha=D beta=D max=N slo=D [queue=N] [rate=R] [sub=N]
//	gpu id=N [sub=N] | gpu-gone id=N | model-gone id=N
//	req at=D id=N[-M] model=N [deadline=D] [priority=N]   the deadline defaults to at+SLO
//	cancel at=D id=N model=N deadline=D
//	done at=D batch=N gpu=N [free=D]
//	advance to=D            wakes at every NextWake until then
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &script{t: t}
		datadriven.RunTest(t, path, s.run)
	})
}

type script struct {
	t   *testing.T
	s   *Scheduler
	slo map[uint64]Duration
	now Time
	out strings.Builder
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	s.t = t
	s.out.Reset()
	switch d.Cmd {
	case "new":
		s.s, s.slo, s.now = New(Options{Ctrl: s.span(d, "ctrl", 0), Data: s.span(d, "data", 0), Prompt: s.share(d, "prompt")}), map[uint64]Duration{}, 0
	case "model":
		s.model(d)
	case "gpu":
		s.result(s.s.AddGPU(s.now, GPUID(s.num(d, "id", 0)), uint32(s.num(d, "sub", 0))))
	case "gpu-gone":
		s.s.RemoveGPU(s.now, GPUID(s.num(d, "id", 0)))
	case "model-gone":
		s.s.RemoveModel(s.now, ModelID(s.num(d, "id", 0)))
	case "req":
		s.request(d)
	case "cancel":
		s.now = Time(s.span(d, "at", Duration(s.now)))
		ok := s.s.Cancel(s.now, ModelID(s.num(d, "model", 1)), RequestID(s.num(d, "id", 0)), 0)
		fmt.Fprintln(&s.out, "canceled:", ok)
	case "done":
		s.now = Time(s.span(d, "at", Duration(s.now)))
		s.result(s.s.Complete(s.now, BatchID(s.num(d, "batch", 0)), GPUID(s.num(d, "gpu", 0)), Time(s.span(d, "free", Duration(s.now)))))
	case "advance":
		s.advance(Time(s.span(d, "to", 0)))
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	s.act()
	if s.out.Len() == 0 {
		return "ok\n"
	}
	return s.out.String()
}

func (s *script) model(d *datadriven.TestData) {
	p := line(s.t, time.Duration(s.span(d, "alpha", 0)), time.Duration(s.span(d, "beta", 0)), int(s.num(d, "max", 64)))
	id := s.num(d, "id", 1)
	s.slo[id] = s.span(d, "slo", 0)
	s.result(s.s.AddModel(s.now, ModelID(id), Model{Profile: p, SLO: s.slo[id], QueueMax: int(s.num(d, "queue", 0)),
		Rate: float64(s.num(d, "rate", 0)), SubCluster: uint32(s.num(d, "sub", 0))}))
}

func (s *script) request(d *datadriven.TestData) {
	s.now = Time(s.span(d, "at", Duration(s.now)))
	var ids string
	d.ScanArgs(s.t, "id", &ids)
	var lo, hi uint64
	if n, _ := fmt.Sscanf(ids, "%d-%d", &lo, &hi); n == 1 {
		hi = lo
	}
	m := s.num(d, "model", 1)
	for id := lo; id <= hi; id++ {
		r := Request{ID: RequestID(id), Model: ModelID(m), Priority: Priority(s.num(d, "priority", 0))}
		r.Deadline = Time(s.span(d, "deadline", Duration(s.now.Add(s.slo[m]))))
		if why := s.s.Enqueue(s.now, r); why != ReasonNone {
			fmt.Fprintf(&s.out, "%v refuse %d: %v\n", time.Duration(s.now), id, why)
		}
		s.act()
	}
}

func (s *script) advance(to Time) {
	for {
		at := s.s.NextWake()
		if at > to {
			s.now = to
			return
		}
		s.now = max(s.now, at)
		s.s.Advance(s.now)
		s.act()
	}
}

func (s *script) act() {
	if s.s == nil {
		return
	}
	batches, drops := s.s.Actions()
	for _, b := range batches {
		var ids []RequestID
		for i := range b.Requests {
			ids = append(ids, b.Requests[i].ID)
		}
		fmt.Fprintf(&s.out, "%v gpu%d batch %d: model %d n=%d [%v, %v) latest %v %v\n", time.Duration(s.now), b.GPU, b.ID, b.Model,
			len(b.Requests), time.Duration(b.ExecAt), time.Duration(b.Finish), time.Duration(b.Latest), ids)
	}
	for _, x := range drops {
		fmt.Fprintf(&s.out, "%v drop %d: %v\n", time.Duration(s.now), x.ID, x.Reason)
	}
	s.s.reset()
}

func (s *script) result(err error) {
	if err != nil {
		fmt.Fprintln(&s.out, "error:", err)
	}
}

func (s *script) num(d *datadriven.TestData, key string, def uint64) uint64 {
	if d.HasArg(key) {
		d.ScanArgs(s.t, key, &def)
	}
	return def
}

func (s *script) share(d *datadriven.TestData, key string) (v float64) {
	if d.HasArg(key) {
		var text string
		d.ScanArgs(s.t, key, &text)
		if _, err := fmt.Sscanf(text, "%g", &v); err != nil {
			d.Fatalf(s.t, "%s: %v", key, err)
		}
	}
	return v
}

func (s *script) span(d *datadriven.TestData, key string, def Duration) Duration {
	if !d.HasArg(key) {
		return def
	}
	var text string
	d.ScanArgs(s.t, key, &text)
	v, err := time.ParseDuration(text)
	if err != nil {
		d.Fatalf(s.t, "%s: %v", key, err)
	}
	return Duration(v)
}
