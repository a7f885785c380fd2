package engine

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// TestScripts runs the scripts under testdata/scripts on virtual time. After each command stand the batches that were
// ordered since, the requests that ended and how, and the backends that were given up. The commands:
//
//	engine [queue=N] [requests=N] [partitions=N] [prompt] [epoch=D]    begins anew; limits are engine.Options', prompt defers nothing
//	backend NAME gpus=N models=(m,…) [loadable=(m,…)] [memory=N]    ℓ(1) = 5 ms, a ms more for each request, 8 at most; a model is of 40 bytes
//	frontend NAME [window=N]
//	submit NAME id=N[-M] model=m budget=D [priority=N] [ready=D]
//	cancel NAME id=N model=m
//	hang NAME          batches that come from now on never end
//	fail NAME reason=R [untold] [times=N]   every request of every batch ends so, or the next N; without a reason they work again
//	close NAME         ends a backend's or a frontend's session
//	advance D          lets that much time pass
//	load NAME models=(m,…) each=D budget=D for=D    asks for each model at that interval, while backends carry out what plans order
//	plan               the latest plan, what came of epochs, and which GPUs offer what
//	stats              what the engine counts, but for counts of 0
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &scripted{t: t}
		datadriven.RunTest(t, path, s.run)
	})
}

// scripted is a stage that a script drives.
type scripted struct {
	*stage
	t       *testing.T
	backs   map[string]*emulated
	loaders map[string]*loader
	last    uint64 // the latest request of load
	fronts  map[string]*front
	batches map[string]int // by backend: batches already printed
	cut     map[string]bool
	ends    map[uint64]int // by request: ends already printed
}

func (s *scripted) run(t *testing.T, d *datadriven.TestData) string {
	s.t = t
	switch {
	case d.Cmd == "engine":
		s.begin(d)
	case s.stage == nil:
		d.Fatalf(t, "want engine first")
	case d.Cmd == "stats":
		return s.stats()
	case d.Cmd == "plan":
		return s.plan()
	case d.Cmd == "load":
		return s.load(d, s.front(d, d.CmdArgs[0].Key))
	case d.Cmd == "advance":
		s.stage.run(s.clock.now + s.span(d, d.CmdArgs[0].Key))
	default:
		if refused := s.command(d, d.CmdArgs[0].Key); refused != nil {
			return fmt.Sprintln("refused:", refused)
		}
	}
	return s.news()
}

func (s *scripted) begin(d *datadriven.TestData) {
	o := Options{QueueMax: s.num(d, "queue", 0), RequestsMax: s.num(d, "requests", 0), Partitions: s.num(d, "partitions", 1)}
	if d.HasArg("prompt") {
		o.Prompt = 1
	}
	if d.HasArg("epoch") {
		o.Epoch = time.Duration(s.span(d, s.word(d, "epoch")))
	}
	s.stage = newStage(s.t, o)
	s.loaders, s.last = map[string]*loader{}, 1<<32
	s.backs, s.fronts = map[string]*emulated{}, map[string]*front{}
	s.batches, s.cut, s.ends = map[string]int{}, map[string]bool{}, map[uint64]int{}
}

// command performs a command for a backend or a frontend.
func (s *scripted) command(d *datadriven.TestData, name string) error {
	switch d.Cmd {
	case "backend":
		b, err := s.backend(s.hello(d, name))
		if err == nil {
			s.backs[name], s.loaders[name] = b, newLoader(b)
		}
		return err
	case "frontend":
		s.fronts[name] = s.windowed(uint32(s.num(d, "window", 0)))
	case "submit":
		if !s.submit(d, s.front(d, name)) {
			return errors.New("the session has closed")
		}
	case "cancel":
		f := s.front(d, name)
		f.Cancel([]wire.Cancel{{ID: uint64(s.num(d, "id", 0)), Model: s.model(d, f)}})
	case "hang":
		s.back(d, name).hang = true
	case "fail":
		s.fail(d, s.back(d, name))
	case "close":
		if f := s.fronts[name]; f != nil {
			f.Close()
		} else {
			s.back(d, name).Close()
		}
	default:
		d.Fatalf(s.t, "unknown command %s", d.Cmd)
	}
	return nil
}

// hello describes a backend. A backend that can load models also reports the sizes of the models and its GPUs'
// memory.
func (s *scripted) hello(d *datadriven.TestData, name string) wire.BackendHello {
	gpus, loaded, loadable := s.num(d, "gpus", 1), s.words(d, "models"), s.words(d, "loadable")
	h := hello(name, gpus, slope, append(slices.Clone(loaded), loadable...)...)
	if !d.HasArg("memory") {
		return h
	}

	h.Version = wire.Version
	h.Details = slices.Repeat([]wire.GPUDetail{{Kind: "x", Memory: uint64(s.num(d, "memory", 0))}}, gpus)
	for k := range h.Models {
		h.Models[k].Info.Static = 40
		h.Models[k].Loaded = slices.Repeat([]bool{k < len(loaded)}, gpus)
	}
	return h
}

// load requests models for some time and prints how many requests got an output.
func (s *scripted) load(d *datadriven.TestData, f *front) string {
	each, budget := s.span(d, s.word(d, "each")), s.span(d, s.word(d, "budget"))
	first := s.last + 1
	for end := s.clock.now + s.span(d, s.word(d, "for")); s.clock.now < end; {
		for _, name := range s.words(d, "models") {
			s.last++
			f.ask(s.last, name, budget)
		}
		s.stage.run(s.clock.now + each)
		for _, name := range slices.Sorted(maps.Keys(s.loaders)) {
			s.loaders[name].work(s.t)
		}
	}
	s.stage.run(s.clock.now + 2*budget)

	served := s.served(first, s.last)
	s.news()
	return fmt.Sprintf("%d of %d answered\n", served, s.last-first+1)
}

// plan prints plans and epochs.
func (s *scripted) plan() string {
	st, err := s.e.PlanStatus()
	if err != nil {
		s.t.Fatal(err)
	}
	x := s.e.Stats().Epochs
	var out strings.Builder
	fmt.Fprintf(&out, "plan %d %s; epochs applied=%d kept=%d failed=%d, busiest %.2f, planned %.2f\n", st.Number, st.State, x.Applied, x.Kept, x.Failed, x.Latest.Before, x.Latest.After)
	for _, g := range st.GPUs {
		fmt.Fprint(&out, g.GPU)
		for _, m := range g.Models {
			fmt.Fprintf(&out, " %s %s", m.Model, m.State)
		}
		out.WriteString("\n")
	}
	return out.String()
}

func (s *scripted) words(d *datadriven.TestData, key string) []string {
	for _, arg := range d.CmdArgs {
		if arg.Key == key {
			return arg.Vals
		}
	}
	return nil
}

func (s *scripted) submit(d *datadriven.TestData, f *front) bool {
	first, last, ranged := strings.Cut(s.word(d, "id"), "-")
	from, err := strconv.Atoi(first)
	to := from
	if err == nil && ranged {
		to, err = strconv.Atoi(last)
	}
	if err != nil {
		d.Fatalf(s.t, "id: %v", err)
	}

	m, ready := s.model(d, f), int64(0)
	if d.HasArg("ready") {
		ready = int64(s.span(d, s.word(d, "ready")))
	}
	var all []wire.Submit
	for id := from; id <= to; id++ {
		all = append(all, wire.Submit{ID: uint64(id), Model: m, Budget: int64(s.span(d, s.word(d, "budget"))), Priority: uint8(s.num(d, "priority", 0)), ReadyIn: ready})
	}
	return f.Submit(all)
}

// model returns the id of the model that a command names. A model that nobody serves gets an id that no model has.
func (s *scripted) model(d *datadriven.TestData, f *front) uint32 {
	if m, known := f.models[s.word(d, "model")]; known {
		return m.ID
	}
	return 1 << 20
}

// stats prints the counts that are not 0, of the engine and then of each model.
func (s *scripted) stats() string {
	var out strings.Builder
	count := func(name string, n uint64) {
		if n > 0 {
			fmt.Fprintf(&out, " %s=%d", name, n)
		}
	}

	st := s.e.Stats()
	count("frontends", uint64(st.Frontends))
	count("gpus", uint64(len(st.GPUs)))
	count("queued", uint64(st.Queued))
	count("duplicates", st.Duplicates)
	count("strays", st.Strays)
	count("unknown", st.Unknown)
	for i := range st.Models {
		m := &st.Models[i]
		fmt.Fprintf(&out, "\n%s:", m.Name)
		count("accepted", m.Accepted)
		count("served", m.Served)
		for why, n := range m.Outcomes {
			count(model.Reason(why).String(), n)
		}
	}
	return strings.TrimPrefix(out.String(), " ") + "\n"
}

func (s *scripted) fail(d *datadriven.TestData, b *emulated) {
	b.lose = nil
	if !d.HasArg("reason") {
		return
	}
	word := s.word(d, "reason")
	for why := range model.ReasonCount {
		if why.String() == word {
			times := s.num(d, "times", math.MaxInt)
			b.reason, b.lose, b.untold = why, func() bool { times--; return times >= 0 }, d.HasArg("untold")
			return
		}
	}
	d.Fatalf(s.t, "unknown reason %s", word)
}

// news prints the events since the last call.
func (s *scripted) news() string {
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.backs)) {
		b := s.backs[name]
		for _, ids := range b.batches[s.batches[name]:] {
			fmt.Fprintf(&out, "%s runs %v\n", name, ids)
		}
		s.batches[name] = len(b.batches)
		if b.cut && !s.cut[name] {
			s.cut[name] = true
			fmt.Fprintf(&out, "%s is given up\n", name)
		}
	}

	for _, id := range slices.Sorted(maps.Keys(s.stage.ends)) {
		for _, how := range s.stage.ends[id][s.ends[id]:] {
			fmt.Fprintf(&out, "%d: %s\n", id, how)
		}
		s.ends[id] = len(s.stage.ends[id])
	}
	if out.Len() == 0 {
		return "nothing\n"
	}
	return out.String()
}

func (s *scripted) front(d *datadriven.TestData, name string) *front {
	if f := s.fronts[name]; f != nil {
		return f
	}
	d.Fatalf(s.t, "no frontend %s", name)
	return nil
}

func (s *scripted) back(d *datadriven.TestData, name string) *emulated {
	if b := s.backs[name]; b != nil {
		return b
	}
	d.Fatalf(s.t, "no backend %s", name)
	return nil
}

func (s *scripted) word(d *datadriven.TestData, key string) (v string) {
	d.ScanArgs(s.t, key, &v)
	return v
}

func (s *scripted) num(d *datadriven.TestData, key string, def int) int {
	if d.HasArg(key) {
		d.ScanArgs(s.t, key, &def)
	}
	return def
}

func (s *scripted) span(d *datadriven.TestData, text string) sched.Time {
	v, err := time.ParseDuration(text)
	if err != nil {
		d.Fatalf(s.t, "%v", err)
	}
	return sched.Time(v)
}
