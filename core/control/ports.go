package control

import (
	"downbeat.dev/core/engine"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// frontendPort sends the engine's messages to a frontend over TCP. A failed send has closed the connection; the
// reader then ends the session.
type frontendPort struct{ w *writer }

func (p *frontendPort) Models(m []model.Info) { sendErr(p.w, m, wire.AppendModels) }

func (p *frontendPort) Outcomes(m []wire.Outcome) { sendAll(p.w, m, wire.AppendOutcomes) }

func (p *frontendPort) Answers(m []wire.ModelAnswer) { sendErr(p.w, m, wire.AppendModelAnswers) }

type backendPort struct {
	w        *writer
	executes []wire.Execute // scratch, under w's lock
}

func (p *backendPort) Peers(m []wire.Peer) { sendErr(p.w, m, wire.AppendPeers) }

func (p *backendPort) Execute(m []engine.Order) { sendAll(p.w, m, p.append) }

func (p *backendPort) Place(m []wire.Placement) {
	// Backends of an earlier version know no placements.
	if p.w.version == 0 || p.w.version >= leadVersion {
		sendAll(p.w, m, wire.AppendPlacements)
	}
}

func (p *backendPort) Command(m []wire.ModelCommand) { sendErr(p.w, m, wire.AppendModelCommands) }

func (p *backendPort) Spare(m []wire.SpareStart) { sendAll(p.w, m, wire.AppendSpareStarts) }

func (p *backendPort) Cut(err error) { p.w.closeFor(err) }

func (p *backendPort) append(dst []byte, m []engine.Order) []byte {
	p.executes = engine.AppendMessages(p.executes[:0], m)
	return wire.AppendExecutes(dst, p.executes)
}
