package backend

import (
	"errors"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/internal/sicklink"
	"downbeat.dev/rdma"
)

// TestInputsOfAnotherBackend: an input may lie in another backend's memory, from which it is read one-sidedly. Its
// answer still goes to the frontend. Rows of both kinds may be in one batch.
func TestInputsOfAnotherBackend(t *testing.T) {
	for _, provider := range []string{"local", "shm", "tcp"} {
		t.Run(provider, func(t *testing.T) {
			r := newRig(t, rigOptions{alpha: time.Millisecond, batchMax: 8, front: rdma.Config{Providers: []string{provider}}})
			other := newStub(t, rdma.Config{Providers: []string{provider}}) // another backend is just a node to this one
			r.Peers([]wire.Peer{{Node: model.NodesMax, DataAddr: other.node.Addr()}})

			for batch := range uint64(5) {
				e, inputs := r.batch(batch, 8)
				for i := range e.Items {
					if i%2 == 1 {
						e.Items[i].Input = other.offer(inputs[e.Items[i].ID]).In(model.NodesMax)
					}
				}
				r.Execute([]wire.Execute{e})

				for id, in := range inputs {
					r.checkOutput(id, in)
				}
				r.checkFailures(batch)
			}
			if len(other.answers) != 0 {
				t.Errorf("%d answers went to where inputs lay", len(other.answers))
			}
		})
	}
}

// TestSourceThatIsGone shows that an input that cannot be read fails alone, and that the scheduler tells the
// frontend.
func TestSourceThatIsGone(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Millisecond, batchMax: 4})
	e, inputs := r.batch(1, 4)
	e.Items[2].Input = e.Items[2].Input.In(3)
	r.Execute([]wire.Execute{e})

	r.checkFailures(1, wire.ItemFailure{Index: 2, Reason: model.InputUnavailable, Untold: true})
	for i, it := range e.Items {
		if i != 2 {
			r.checkOutput(it.ID, inputs[it.ID])
		}
	}
}

// TestAnswersWaitForTheirFrontend: if an input comes from another backend, its batch may end before the frontend is
// connected. Answers in the meantime arrive in order once it is.
func TestAnswersWaitForTheirFrontend(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Millisecond, batchMax: 1})
	f := r.peers.findPeer(1)
	if !until(func() bool { return f.conn.Load() != nil }) {
		t.Fatal("the frontend is not connected")
	}
	slow := &peer{all: f.all, addr: f.addr, connecting: true}

	output := []byte("output")
	answered := wire.ResultHeader{ID: 1, Output: uint32(len(output))}
	refused := wire.ResultHeader{ID: 2, Reason: model.DeadlineCannotBeMet}
	for _, parts := range [][][]byte{{answered.Append(nil), output}, {refused.Append(nil)}} {
		if err := slow.sendMessage(parts); err != nil {
			t.Fatalf("while it is being connected: %v", err)
		}
	}
	if err := slow.sendMessage([][]byte{make([]byte, queuedBytesMax)}); !errors.Is(err, errNoConnection) {
		t.Errorf("more than is kept: %v", err)
	}

	slow.noteConnected(f.conn.Load(), nil)
	if a := r.front.wait(1); a.Reason != model.ReasonNone || string(a.output) != "output" {
		t.Errorf("the first is answered with %v, %q", a.Reason, a.output)
	}
	if a := r.front.wait(2); a.Reason != model.DeadlineCannotBeMet {
		t.Errorf("the second is answered with %v", a.Reason)
	}
}

// TestAnswersWithoutAWayAreGivenBack: if there is no connection to the frontend, the scheduler is told that the
// output is lost.
func TestAnswersWithoutAWayAreGivenBack(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Millisecond, batchMax: 4})
	other := newStub(t, rdma.Config{})
	r.Peers([]wire.Peer{{Frontend: 2, DataAddr: sicklink.FreeAddr(t)}, {Node: model.NodesMax, DataAddr: other.node.Addr()}})
	f := r.peers.findPeer(2)
	if !until(func() bool { f.mu.Lock(); defer f.mu.Unlock(); return !f.connecting && !f.tried.IsZero() }) {
		t.Fatal("the attempt to connect does not end")
	}

	e, inputs := r.batch(1, 2)
	cut := &e.Items[1]
	cut.Frontend, cut.Input = 2, other.offer(inputs[cut.ID]).In(model.NodesMax)
	r.Execute([]wire.Execute{e})
	r.checkOutput(e.Items[0].ID, inputs[e.Items[0].ID])
	r.checkFailures(1, wire.ItemFailure{Index: 1, Reason: model.BackendLost})
}
