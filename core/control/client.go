package control

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// DialFrontend opens a frontend's sessions with the schedulers in o. It tries until one is open or ctx ends (after
// ten seconds if ctx has no deadline). A patient dial then continues in the background; a fatal refusal ends it at
// once. ctx bounds only the dial, not the link. A scheduler of this process (ListenInProcess) is called directly.
func DialFrontend(ctx context.Context, o DialOptions, hello wire.FrontendHello, ev FrontendEvents) (FrontendLink, error) {
	here, err := findInProcess(o.Addr)
	if err != nil {
		return nil, err
	}
	if here.frontend != nil {
		return here.frontend(hello, ev)
	}

	hello.Version = wire.Version

	if hello.Token == "" {
		hello.Token = o.Token
	}
	b, err := wire.AppendFrontendHello(nil, &hello)
	if err != nil {
		return nil, err
	}
	l := &frontendLink{FrontendEvents: ev, models: map[*member]map[uint32]model.Info{}}
	if l.group, err = newGroup(o, b, l); err != nil {
		return nil, err
	}

	if err := l.startAll(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

// frontendLink is a frontend's end of its group.
type frontendLink struct {
	*group
	FrontendEvents
	outcomes []wire.Outcome // guarded by the group's lock, as is models
	models   map[*member]map[uint32]model.Info
}

func (l *frontendLink) begin(m *member) { l.models[m] = map[uint32]model.Info{} }

func (l *frontendLink) replay(m *member) {
	if known := l.models[m]; len(known) > 0 {
		// Sorted by id, so that a takeover tells the models in the same order every time.
		all := make([]model.Info, 0, len(known))
		for _, id := range slices.Sorted(maps.Keys(known)) {
			all = append(all, known[id])
		}
		l.Models(all)
	}
}

func (l *frontendLink) frame(m *member, f wire.Frame, obeyed bool) (err error) {
	switch f.Type {
	case wire.TypeOutcome:
		// Frames of a scheduler that is not obeyed are decoded as well: a malformed one must end its session too.
		if l.outcomes, err = wire.DecodeOutcomes(l.outcomes, f); err == nil && obeyed {
			l.Outcomes(l.outcomes)
		}

	case wire.TypeModelAnswer:
		var answers []wire.ModelAnswer
		if answers, err = wire.DecodeModelAnswers(f); err == nil && obeyed {
			l.Answers(answers)
		}

	case wire.TypeModels:
		var news []model.Info
		if news, err = wire.DecodeModels(f); err != nil {
			break
		}

		// Every scheduler's models are remembered, so that a new leader's models are known at once. A model without a
		// name is gone.
		for _, i := range news {
			if i.Name == "" {
				delete(l.models[m], i.ID)
			} else {
				l.models[m][i.ID] = i
			}
		}
		if obeyed {
			l.Models(news)
		}
	default:
		err = fmt.Errorf("%w: %v frame to a frontend", wire.ErrMalformed, f.Type)
	}
	return err
}

func (l *frontendLink) Submit(m []wire.Submit) error {
	to := l.Session()
	if to == nil {
		return ErrUnavailable
	}
	return to.Submit(m)
}

// Session returns the present session; nil: there is none. A frontend that has looked up model ids for a session can
// make sure that no other one gets them.
func (l *frontendLink) Session() Submitter {
	if w := l.leaderWriter(); w != nil {
		return (*boundFrontend)(w)
	}
	return nil
}

// boundFrontend sends in one session, whatever its group obeys later.
type boundFrontend writer

func (s *boundFrontend) Submit(m []wire.Submit) error {
	if err := sendAll((*writer)(s), m, wire.AppendSubmits); err != nil {
		return unavailableError(err)
	}
	return nil
}

func (l *frontendLink) Cancel(c wire.Cancel) error {
	w := l.leaderWriter()
	if w == nil {
		return ErrUnavailable
	}

	m := [1]wire.Cancel{c}
	if err := sendAll(w, m[:], wire.AppendCancels); err != nil {
		return unavailableError(err)
	}
	return nil
}

// Command needs a scheduler that knows commands.
func (l *frontendLink) Command(c wire.ModelCommand) error {
	// A scheduler of an earlier protocol would cut the session at an unknown message.
	version := uint16(leadVersion)
	if c.Op == wire.TeachModel || c.Op == wire.RollBackModel {
		version = wire.SpareVersion
	}
	if w := l.leaderWriter(); w != nil && w.version != 0 && w.version < version {
		return fmt.Errorf("%w: the scheduler speaks version %d of the protocol and does not know %q", ErrUnavailable, w.version, c.Op)
	}
	return tellAll(l.group, []wire.ModelCommand{c}, wire.AppendModelCommands)
}

func tellAll[T any](g *group, m []T, enc func([]byte, []T) ([]byte, error)) error {
	return tellFrom(g, leadVersion, m, enc)
}

// tellFrom sends messages that exist since a protocol version.
func tellFrom[T any](g *group, version uint16, m []T, enc func([]byte, []T) ([]byte, error)) error {
	w := g.leaderWriter()
	switch {
	case w == nil:
		return ErrUnavailable

	// A scheduler of an earlier version does not need the message and would cut the session for it.
	case w.version != 0 && w.version < version:
		return nil
	}
	if err := sendErr(w, m, enc); err != nil {
		return unavailableError(err)
	}
	return nil
}
