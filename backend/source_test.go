package backend

import (
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// TestInputsOfAnotherBackend: an input may lie in another backend's memory, from which it is read one-sidedly; its answer
// goes to the frontend all the same. Rows of both kinds may be in one batch.
func TestInputsOfAnotherBackend(t *testing.T) {
	for _, provider := range []string{"local", "shm", "tcp"} {
		t.Run(provider, func(t *testing.T) {
			r := newRig(t, rigOptions{alpha: time.Millisecond, batchMax: 8, front: rdma.Config{Providers: []string{provider}}})
			other := newStub(t, rdma.Config{Providers: []string{provider}}) // what a backend before this one is to it: a node
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

// TestSourceThatIsGone: what cannot be read fails alone, and it is the reply's node that is told so, by the scheduler.
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
