package engine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// A frontend's command goes to every backend, and its answer returns once all of them have answered or left. The
// registry only passes commands on: which models a backend has, and why, is the backend's matter.

const (
	commandVersion = 5    // the protocol version from which backends take commands
	commandsMax    = 1024 // in progress at a time

	// commandMost is the longest that a command waits for a backend. Loading a large model takes minutes.
	commandMost = sched.Duration(30 * time.Minute)
)

// command is one that backends are working on.
type command struct {
	frontend uint32 // the session
	number   uint64 // the frontend's number for it
	until    sched.Time
	waiting  []*Backend
	answers  []wire.ModelAnswer
}

// Command takes a frontend's commands. Each ends with an answer at the port. It returns false when the session is closed.
func (f *Frontend) Command(m []wire.ModelCommand) bool {
	if f.closed.Load() {
		return false
	}
	return f.e.runInRegistry(func() {
		for i := range m {
			f.e.reg.commandBackends(f, m[i])
		}
	}) == nil
}

// Answer takes a backend's answers to commands. Answers that nobody waits for are ignored.
func (b *Backend) Answer(m []wire.ModelAnswer) bool {
	return b.e.runInRegistry(func() {
		for i := range m {
			b.e.reg.noteCommandAnswer(b, m[i])
		}
	}) == nil
}

// Unserved takes the list of models that the backend does not serve, which replaces its previous list. It returns
// false if the session is closed or the list is invalid.
func (b *Backend) Unserved(u wire.Unserved) bool {
	ok := false
	err := b.e.runInRegistry(func() { ok = b.e.reg.noteUnserved(b, u.Models) })
	return ok && err == nil
}

// versionOf returns the protocol version from which backends take a command.
func versionOf(op wire.CommandOp) uint16 {
	if op == wire.TeachModel || op == wire.RollBackModel {
		return wire.SpareVersion
	}
	return commandVersion
}

// commandBackends sends a command to every backend.
func (g *registry) commandBackends(f *Frontend, c wire.ModelCommand) {
	asked := &command{frontend: f.number, number: c.Number, until: g.e.clock.Now().Add(commandMost)}
	if !g.commandRoom.Begin(f.number) {
		text := fmt.Sprintf("%d commands of this session are under way already, of %d that all may have", g.commandRoom.Of(f.number), commandsMax)
		asked.answers = append(asked.answers, wire.ModelAnswer{Code: wire.CommandRefused, Text: text})
		g.endCommand(asked)
		return
	}

	// The engine numbers commands for backends itself: two frontends may use the same number.
	g.lastCommand++
	c.Number, c.Frontend = g.lastCommand, f.number
	g.commands[c.Number] = asked
	for _, b := range g.backends {
		// An older backend would not understand the command, so the engine refuses in its name.
		if b.hello.Version < versionOf(c.Op) {
			asked.answers = append(asked.answers, wire.ModelAnswer{Code: wire.CommandRefused,
				Text: fmt.Sprintf("backend %s speaks version %d of the protocol: want %d", b.name, b.hello.Version, versionOf(c.Op))})
			continue
		}
		asked.waiting = append(asked.waiting, b)
	}

	if len(asked.waiting) == 0 && len(asked.answers) == 0 {
		asked.answers = append(asked.answers, wire.ModelAnswer{Code: wire.CommandLost, Text: "no backend is connected"})
	}

	// In virtual time a port may answer before it returns, and the answer changes the list: iterate over a copy.
	for _, b := range slices.Clone(asked.waiting) {
		b.port.Command([]wire.ModelCommand{c})
	}
	g.settleCommand(c.Number, asked)
}

// noteCommandAnswer records one backend's answer.
func (g *registry) noteCommandAnswer(b *Backend, a wire.ModelAnswer) {
	asked := g.commands[a.Number]
	if asked == nil || !slices.Contains(asked.waiting, b) {
		return
	}
	asked.waiting = slices.DeleteFunc(asked.waiting, func(x *Backend) bool { return x == b })
	asked.answers = append(asked.answers, a)
	g.settleCommand(a.Number, asked)
}

// abandonCommands ends the commands that wait for a departed backend.
func (g *registry) abandonCommands(b *Backend) {
	for _, number := range g.commandsInOrder() {
		g.noteCommandAnswer(b, wire.ModelAnswer{Number: number, Code: wire.CommandLost, Text: "backend " + b.name + " was lost"})
	}
}

// commandsInOrder returns the numbers of the commands under way. Map order is random, and virtual time must repeat itself.
func (g *registry) commandsInOrder() []uint64 {
	// Mostly there is none, and sorting no keys would allocate, too.
	if len(g.commands) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(g.commands))
}

// endOverdueCommands answers in the name of backends that have kept a command waiting for commandMost. Without it a backend
// that never answers would fill the room for commands of all frontends.
func (g *registry) endOverdueCommands(now sched.Time) {
	for _, number := range g.commandsInOrder() {
		asked := g.commands[number]
		if asked == nil || now < asked.until {
			continue
		}
		for _, b := range slices.Clone(asked.waiting) {
			text := fmt.Sprintf("backend %s did not answer within %v", b.name, time.Duration(commandMost))
			g.noteCommandAnswer(b, wire.ModelAnswer{Number: number, Code: wire.CommandLost, Text: text})
		}
	}
}

// settleCommand ends a command that waits for no backend any more.
func (g *registry) settleCommand(number uint64, asked *command) {
	if len(asked.waiting) == 0 {
		delete(g.commands, number)
		g.commandRoom.End(asked.frontend)
		g.endCommand(asked)
	}
}

// endCommand sends the frontend the worst answer, with the texts of all equally bad ones. If one backend did what was
// asked, it does not matter that another does not know the model.
func (g *registry) endCommand(asked *command) {
	severity := func(c wire.AnswerCode) int {
		return slices.Index([]wire.AnswerCode{wire.CommandUnknown, wire.CommandDone, wire.CommandRefused, wire.CommandLost, wire.CommandFailed}, c)
	}
	worst := slices.MaxFunc(asked.answers, func(x, y wire.ModelAnswer) int { return cmp.Compare(severity(x.Code), severity(y.Code)) })

	var texts []string
	for _, a := range asked.answers {
		if a.Code == worst.Code && a.Text != "" && !slices.Contains(texts, a.Text) {
			texts = append(texts, a.Text)
		}
	}
	if f := g.e.frontend(asked.frontend); f != nil {
		f.port.Answers([]wire.ModelAnswer{{Number: asked.number, Code: worst.Code, Text: strings.Join(texts, "; ")}})
	}
}

// noteUnserved applies a backend's list of models that it does not serve.
func (g *registry) noteUnserved(b *Backend, models []model.Info) bool {
	if b.dead.Load() || slices.ContainsFunc(models, func(m model.Info) bool { return m.Name == "" || m.Reason == "" }) {
		return false
	}

	before := b.failed
	b.hello.Failed, b.failed = models, nil
	if g.countNewModels(&wire.BackendHello{Failed: models}) > g.roomForModels() {
		g.e.log.Error("models that are not served are not listed: too many", "backend", b.name, "models", len(models))
		b.hello.Failed = nil
	}
	g.noteFailed(b)

	// Models that no backend mentions any more are forgotten at once: none has ever been served under this name.
	for _, id := range before {
		if m := g.models[id]; !m.served() && !g.isKnown(id) {
			m.since = g.e.clock.Now().Add(-keptMax)
		}
	}
	g.forgetModels()
	g.settleHomes()
	return true
}
