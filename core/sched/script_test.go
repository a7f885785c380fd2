package sched

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	vocabulary "downbeat.dev/core/model"
)

// TestScripts runs the scenarios of testdata: one rule each, named by what happens. Rewrite them
// with -rewrite; commit only a difference that you can explain.
//
//	new [ctrl=D] [data=D] [prompt=F]
//	model id=N alpha=D beta=D max=N slo=D [queue=N] [rate=R] [sub=N]
//	family id=N slo=D [homes=(N,…)] [floor=F] [rate=N] [change]   a line for each variant: accuracy, then alpha beta max of each
//	                        home, or - where it does not run; change: the service exists already
//	price sub=N price=F
//	gpu id=N [sub=N] | gpu-gone id=N | model-gone id=N
//	req at=D id=N[-M] model=N [deadline=D] [priority=N] [from=D]   the deadline defaults to at+SLO; from: it is early
//	hasten at=D id=N model=N
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
	t        *testing.T
	s        *Scheduler
	slo      map[uint64]Duration
	families map[ModelID]bool // the models whose batches name their variant
	now      Time
	out      strings.Builder
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	s.t = t
	s.out.Reset()
	switch d.Cmd {
	case "new":
		s.s, s.slo, s.now = New(Options{Ctrl: s.span(d, "ctrl", 0), Data: s.span(d, "data", 0), Prompt: s.share(d, "prompt")}), map[uint64]Duration{}, 0
		s.families = map[ModelID]bool{}
	case "model":
		s.model(d)
	case "family":
		s.family(d)
	case "price":
		s.s.SetPrice(uint32(s.num(d, "sub", 0)), s.share(d, "price"), s.share(d, "price"))
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
	case "hasten":
		s.now = Time(s.span(d, "at", Duration(s.now)))
		ok := s.s.Hasten(s.now, ModelID(s.num(d, "model", 1)), RequestID(s.num(d, "id", 0)), 0)
		fmt.Fprintln(&s.out, "hastened:", ok)
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

func (s *script) family(d *datadriven.TestData) {
	id := s.num(d, "id", 1)
	v := Service{SLO: s.span(d, "slo", 0), Floor: s.share(d, "floor"), Rate: float64(s.num(d, "rate", 0)), Homes: []uint32{0}}
	for _, arg := range d.CmdArgs {
		if arg.Key == "homes" {
			v.Homes = nil
			for i := range arg.Vals {
				n, err := strconv.Atoi(arg.Vals[i])
				if err != nil {
					d.Fatalf(s.t, "homes: %v", err)
				}
				v.Homes = append(v.Homes, uint32(n))
			}
		}
	}
	for _, text := range strings.Split(strings.TrimSpace(d.Input), "\n") {
		v.Variants = append(v.Variants, s.variant(d, strings.Fields(text)))
	}

	s.slo[id], s.families[ModelID(id)] = v.SLO, true
	if d.HasArg("change") {
		s.result(s.s.ChangeService(s.now, ModelID(id), v))
		return
	}
	s.result(s.s.AddService(s.now, ModelID(id), v))
}

func (s *script) variant(d *datadriven.TestData, words []string) (v Variant) {
	if _, err := fmt.Sscan(words[0], &v.Accuracy); err != nil {
		d.Fatalf(s.t, "accuracy: %v", err)
	}
	for i := 1; i < len(words); i++ {
		if words[i] == "-" {
			v.Profiles = append(v.Profiles, nil)
			continue
		}
		alpha, err := time.ParseDuration(words[i])
		if err != nil {
			d.Fatalf(s.t, "alpha: %v", err)
		}
		beta, err := time.ParseDuration(words[i+1])
		if err != nil {
			d.Fatalf(s.t, "beta: %v", err)
		}
		most, err := strconv.Atoi(words[i+2])
		if err != nil {
			d.Fatalf(s.t, "max: %v", err)
		}
		v.Profiles = append(v.Profiles, line(s.t, alpha, beta, most))
		i += 2
	}
	return v
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
		why := vocabulary.ReasonNone
		if d.HasArg("from") {
			why = s.s.JoinEarly(s.now, r, Time(s.span(d, "from", 0)))
		} else {
			why = s.s.Enqueue(s.now, r)
		}
		if why != vocabulary.ReasonNone {
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
		what := fmt.Sprintf("model %d", b.Model)
		if s.families[b.Model] {
			what += fmt.Sprintf(" variant %d", b.Variant)
		}
		fmt.Fprintf(&s.out, "%v gpu%d batch %d: %s n=%d [%v, %v) latest %v %v\n", time.Duration(s.now), b.GPU, b.ID, what,
			len(b.Requests), time.Duration(b.ExecAt), time.Duration(b.Finish), time.Duration(b.Latest), ids)
	}
	for _, x := range drops {
		rule := [...]string{Expired: "", Windowed: ", windowed", LeftBehind: ", left behind"}[x.Rule]
		fmt.Fprintf(&s.out, "%v drop %d: %v%s\n", time.Duration(s.now), x.ID, x.Reason, rule)
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
