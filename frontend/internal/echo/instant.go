package echo

import (
	"context"

	"downbeat.dev/core/control"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// ListenInstant returns the address, within the process, of a scheduler that answers every request during Submit with the
// bytes 1, 2, 3 and 4. It allocates nothing, so a benchmark measures only the frontend. node sends the answers; the
// caller closes it. forget releases the address.
func ListenInstant(node *rdma.Node, models ...model.Info) (addr string, forget func() error) {
	return control.ListenInProcess(func(hello wire.FrontendHello, ev control.FrontendEvents) (control.FrontendLink, error) {
		peer, err := node.Connect(context.Background(), hello.DataAddr)
		if err != nil {
			return nil, err
		}
		ev.Link(true, nil)
		ev.Models(models)
		return &instant{peer: peer}, nil
	}, nil)
}

type instant struct {
	peer    *rdma.Peer
	message []byte
}

func (l *instant) Submit(all []wire.Submit) error {
	for _, m := range all {
		// The buffer is used again, as a backend's would be.
		h := wire.ResultHeader{ID: m.ID, Output: 4}
		l.message = append(h.Append(l.message[:0]), 1, 2, 3, 4)
		if err := l.peer.Send(l.message); err != nil {
			return err
		}
	}
	return nil
}

func (*instant) Cancel(wire.Cancel) error        { return nil }
func (*instant) Command(wire.ModelCommand) error { return nil }
func (*instant) Close() error                    { return nil }
