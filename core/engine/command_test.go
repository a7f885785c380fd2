package engine

import (
	"testing"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// TestACommandEndsOnceAllBackendsHaveAnswered shows that a command ends with the worst answer, in any order of
// answers, even if one backend is lost.
func TestACommandEndsOnceAllBackendsHaveAnswered(t *testing.T) {
	s := newStage(t, Options{})
	f := s.frontend()
	ask := func(name string) {
		t.Helper()
		f.answers = nil
		if !f.Command([]wire.ModelCommand{{Number: 77, Op: wire.LoadModel, Model: name}}) {
			t.Fatal("a command was refused")
		}
	}
	want := func(code wire.AnswerCode, text string) {
		t.Helper()
		if len(f.answers) != 1 || f.answers[0] != (wire.ModelAnswer{Number: 77, Code: code, Text: text}) {
			t.Errorf("answers %+v, want one: %d %q", f.answers, code, text)
		}
	}

	ask("m")
	want(wire.CommandLost, "no backend is connected")

	one, two := s.mustBackend(current(hello("one", 1, slope, "m"))), s.mustBackend(current(hello("two", 1, slope, "m")))
	answer := func(b *emulated, code wire.AnswerCode, text string) {
		c := b.commanded[len(b.commanded)-1]
		b.Answer([]wire.ModelAnswer{{Number: c.Number, Code: code, Text: text}})
	}
	ask("m")
	if len(f.answers) != 0 || len(one.commanded) != 1 || one.commanded[0].Frontend != f.Number() || one.commanded[0].Model != "m" {
		t.Fatalf("answers %+v, commanded %+v", f.answers, one.commanded)
	}
	answer(two, wire.CommandUnknown, "no such model")
	answer(two, wire.CommandFailed, "twice")
	answer(one, wire.CommandDone, "")
	want(wire.CommandDone, "")

	ask("m")
	answer(one, wire.CommandFailed, "corrupt")
	answer(two, wire.CommandFailed, "corrupt")
	want(wire.CommandFailed, "corrupt")

	ask("m")
	answer(one, wire.CommandDone, "")
	two.Close()
	want(wire.CommandLost, "backend two was lost")
}

// TestACommandDoesNotWaitForEver shows that a backend which lives and never answers ends a command late, and that its own
// late answer is then ignored.
func TestACommandDoesNotWaitForEver(t *testing.T) {
	s := newStage(t, Options{})
	f := s.frontend()
	mute, other := s.mustBackend(current(hello("mute", 1, slope, "m"))), s.mustBackend(current(hello("other", 1, slope, "m")))
	f.Command([]wire.ModelCommand{{Number: 77, Op: wire.LoadModel, Model: "m"}})
	number := mute.commanded[0].Number
	other.Answer([]wire.ModelAnswer{{Number: number, Code: wire.CommandDone}})

	s.e.reg.endOverdueCommands(s.clock.now.Add(commandMost - 1))
	if len(f.answers) != 0 {
		t.Fatalf("answers %+v before the command's time was up", f.answers)
	}

	s.e.keepUp(s.clock.now.Add(commandMost))
	want := wire.ModelAnswer{Number: 77, Code: wire.CommandLost, Text: "backend mute did not answer within 30m0s"}
	if len(f.answers) != 1 || f.answers[0] != want || len(s.e.reg.commands) != 0 {
		t.Fatalf("answers %+v, want %+v; %d commands are left", f.answers, want, len(s.e.reg.commands))
	}

	mute.Answer([]wire.ModelAnswer{{Number: number, Code: wire.CommandDone}})
	if len(f.answers) != 1 {
		t.Errorf("answers %+v: the late one came as well", f.answers)
	}
}

// TestOneSessionLeavesRoomForCommands: a session that sends commands without end, to a backend that never answers, is refused
// at half the room, and another session's command still reaches the backend. Once the first session's end, it may ask again.
func TestOneSessionLeavesRoomForCommands(t *testing.T) {
	s := newStage(t, Options{})
	greedy, other := s.frontend(), s.frontend()
	b := s.mustBackend(current(hello("b", 1, slope, "m")))
	for n := range uint64(2 * commandsMax) {
		greedy.Command([]wire.ModelCommand{{Number: n, Op: wire.LoadModel, Model: "m"}})
	}
	if refused := len(greedy.answers); refused != 2*commandsMax-commandsMax/2 || greedy.answers[0].Code != wire.CommandRefused {
		t.Errorf("%d of %d commands are refused", refused, 2*commandsMax)
	}

	other.Command([]wire.ModelCommand{{Number: 5, Op: wire.LoadModel, Model: "m"}})
	last := b.commanded[len(b.commanded)-1]
	if len(other.answers) != 0 || last.Frontend != other.Number() {
		t.Fatalf("the other session's command: %+v; the backend got %+v last", other.answers, last)
	}

	s.e.keepUp(s.clock.now.Add(commandMost))
	greedy.answers = nil
	greedy.Command([]wire.ModelCommand{{Number: 1, Op: wire.LoadModel, Model: "m"}})
	if len(greedy.answers) != 0 || s.e.reg.commandRoom.Of(other.Number()) != 0 {
		t.Errorf("after the end of all: %+v", greedy.answers)
	}
}

// current returns a hello of the present protocol version.
func current(h wire.BackendHello) wire.BackendHello {
	h.Version = wire.Version
	return h
}

// TestUnservedModelsComeAndGo shows that a backend's list of models that it does not serve replaces its earlier list.
func TestUnservedModelsComeAndGo(t *testing.T) {
	s := newStage(t, Options{})
	h := current(hello("b", 1, slope, "m"))
	b := s.mustBackend(h)
	f := s.frontend()
	say := func(models ...model.Info) bool { return b.Unserved(wire.Unserved{Models: models}) }

	if !say(model.Info{Name: "idle", Reason: model.Unloaded}, model.Info{Name: "bad", Reason: "corrupt"}) {
		t.Fatal("refused")
	}
	if f.models["idle"].Reason != model.Unloaded || f.models["bad"].Reason != "corrupt" || !f.models["m"].Ready {
		t.Errorf("models %+v", f.models)
	}
	if !say(model.Info{Name: "idle", Reason: "corrupt, too"}, model.Info{Name: "m", Version: h.Models[0].Info.Version, Reason: "not true"}) {
		t.Fatal("refused")
	}
	if f.models["idle"].Reason != "corrupt, too" || !f.models["m"].Ready || f.models["m"].Reason != "" {
		t.Errorf("models %+v", f.models)
	}
	for _, m := range s.e.Models() {
		if m.Name == "bad" {
			t.Error("a model that nobody speaks of is known still")
		}
	}
	if say(model.Info{Name: "x"}) || say(model.Info{Reason: "x"}) {
		t.Error("a model without a name or a reason was taken")
	}
}

// TestAServedModelIsDescribedAnew shows that labels and limits follow the files while requests are served.
func TestAServedModelIsDescribedAnew(t *testing.T) {
	s := newStage(t, Options{})
	h := current(hello("b", 1, slope, "m"))
	b := s.mustBackend(h)
	f := s.frontend()
	changed := h.Models[0]
	changed.Info.QueueMax, changed.Info.Config = 3, "new"
	if !b.Offer([]wire.Loadable{{Number: 0, Model: changed}}) {
		t.Fatal("an offer was refused")
	}
	if m := f.models["m"]; !m.Ready || m.Config != "new" || m.QueueMax != 3 || m.SLO == 0 || m.BatchMax == 0 {
		t.Errorf("%+v", m)
	}
	for i := range uint64(20) {
		f.ask(i+1, "m", 100*ms)
	}
	s.run(s.clock.now + 200*ms)
	full := 0
	for _, why := range s.ends {
		if why[0] == model.QueueFull.String() {
			full++
		}
	}
	if full == 0 {
		t.Error("20 requests at once: all were queued, although the limit is 3 now")
	}
}

// TestCommandsOfALostBackendEndInOrder: the answers come in the order of the commands, so that virtual time repeats itself.
func TestCommandsOfALostBackendEndInOrder(t *testing.T) {
	for _, end := range []string{"lost", "overdue"} {
		s := newStage(t, Options{})
		f := s.frontend()
		b := s.mustBackend(current(hello("b", 1, slope, "m")))
		for n := range uint64(20) {
			f.Command([]wire.ModelCommand{{Number: n, Op: wire.LoadModel, Model: "m"}})
		}

		f.answers = nil
		if end == "lost" {
			b.Close()
		} else {
			s.e.reg.endOverdueCommands(s.clock.now.Add(commandMost))
		}
		if len(f.answers) != 20 {
			t.Fatalf("%s: %d answers, want 20", end, len(f.answers))
		}
		for n, a := range f.answers {
			if a.Number != uint64(n) {
				t.Fatalf("%s: answer %d is that of command %d", end, n, a.Number)
			}
		}
	}
}
