package control

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"downbeat.dev/core/wire"
)

// DialBackend opens a backend's sessions, as DialFrontend does.
func DialBackend(ctx context.Context, o DialOptions, hello wire.BackendHello, ev BackendEvents) (BackendLink, error) {
	here, err := findInProcess(o.Addr)
	if err != nil {
		return nil, err
	}
	if here.backend != nil {
		return here.backend(hello, ev)
	}

	// Encode the hello once: every scheduler gets the same bytes.
	hello.Version = wire.Version
	if hello.Token == "" {
		hello.Token = o.Token
	}
	b, err := wire.AppendBackendHello(nil, &hello)
	if err != nil {
		return nil, err
	}

	l := &backendLink{token: hello.Token, BackendEvents: ev, named: map[*member]map[peerName]wire.Peer{}}
	if l.group, err = newGroup(o, b, l); err != nil {
		return nil, err
	}
	if err := l.startAll(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

// backendLink is a backend's end of its group.
type backendLink struct {
	*group
	BackendEvents
	token    string
	peers    []wire.Peer // guarded by the group's lock, as are executes and named
	executes []wire.Execute
	steps    []wire.SpareStart
	named    map[*member]map[peerName]wire.Peer // the nodes that each scheduler has named
}

// peerName identifies a node: frontends and backends are numbered separately.
type peerName struct{ frontend, node uint32 }

func (n peerName) compareNames(o peerName) int {
	return cmp.Or(cmp.Compare(n.frontend, o.frontend), cmp.Compare(n.node, o.node))
}

func (l *backendLink) begin(m *member) { l.named[m] = map[peerName]wire.Peer{} }

func (l *backendLink) replay(m *member) {
	if known := l.named[m]; len(known) > 0 {
		all := make([]wire.Peer, 0, len(known))
		for _, name := range slices.SortedFunc(maps.Keys(known), peerName.compareNames) {
			all = append(all, known[name])
		}
		l.Peers(all)
	}
}

func (l *backendLink) frame(m *member, f wire.Frame, obeyed bool) (err error) {
	switch f.Type {
	case wire.TypeExecute:
		if l.executes, err = wire.DecodeExecutes(l.executes, f); err == nil && obeyed {
			l.Execute(l.executes)
		}
	case wire.TypePlacement:
		var asked []wire.Placement
		if asked, err = wire.DecodePlacements(f); err == nil && obeyed {
			l.Place(asked)
		}

	case wire.TypeModelCommand:
		var asked []wire.ModelCommand
		if asked, err = wire.DecodeModelCommands(f); err == nil && obeyed {
			l.Command(asked)
		}
	case wire.TypeSpareStart:
		if l.steps, err = wire.DecodeSpareStarts(l.steps, f); err == nil && obeyed {
			l.Spare(l.steps)
		}

	case wire.TypePeers:
		if l.peers, err = wire.DecodePeers(l.peers, f); err != nil {
			break
		}

		// Remembered for every scheduler, as a frontend remembers models. A peer without an address has left.
		for _, p := range l.peers {
			name := peerName{p.Frontend, p.Node}
			if p.DataAddr == "" {
				delete(l.named[m], name)
			} else {
				l.named[m][name] = p
			}
		}
		if obeyed {
			l.Peers(l.peers)
		}
	default:
		err = fmt.Errorf("%w: %v frame to a backend", wire.ErrMalformed, f.Type)
	}
	return err
}

func (l *backendLink) Done(m []wire.Done) error {
	w := l.leaderWriter()
	if w == nil {
		return ErrUnavailable
	}

	if err := sendAll(w, m, wire.AppendDones); err != nil {
		return unavailableError(err)
	}
	return nil
}

// Offer and Report go to the obeyed scheduler. A scheduler of the previous protocol assumes that every model is
// loaded everywhere.
func (l *backendLink) Offer(m []wire.Loadable) error {
	return tellAll(l.group, m, wire.AppendLoadables)
}

func (l *backendLink) Report(m []wire.PlacementReport) error {
	return tellAll(l.group, m, wire.AppendPlacementReports)
}

func (l *backendLink) Answer(a wire.ModelAnswer) error {
	return tellAll(l.group, []wire.ModelAnswer{a}, wire.AppendModelAnswers)
}

func (l *backendLink) Unserved(u wire.Unserved) error {
	return tellAll(l.group, []wire.Unserved{u}, func(dst []byte, u []wire.Unserved) ([]byte, error) { return wire.AppendUnserved(dst, u[0]) })
}

func (l *backendLink) OfferSpare(m []wire.SpareOffer) error {
	return tellFrom(l.group, wire.SpareVersion, m, wire.AppendSpareOffers)
}

func (l *backendLink) EndSpare(m []wire.SpareEnd) error {
	return tellFrom(l.group, wire.SpareVersion, m, func(dst []byte, m []wire.SpareEnd) ([]byte, error) { return wire.AppendSpareEnds(dst, m), nil })
}

func (l *backendLink) Renew(hello wire.BackendHello) error { return l.renew(hello, false) }

func (l *backendLink) Renumber(hello wire.BackendHello) error { return l.renew(hello, true) }

// renew sets the hello of later sessions. The next handshake reads it; an open session keeps the one it was opened with.
func (l *backendLink) renew(hello wire.BackendHello, outdated bool) error {
	hello.Version, hello.Token = wire.Version, l.token
	b, err := wire.AppendBackendHello(nil, &hello)
	if err != nil {
		return err
	}
	return l.renewHello(b, outdated)
}
