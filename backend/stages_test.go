package backend

import (
	"testing"
	"time"

	"downbeat.dev/core/wire"
)

// TestResultsTellStages shows that a frontend that reads stages gets them, within the total time of the request. A
// frontend of a protocol before 7 gets the results that it knows.
func TestResultsTellStages(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Millisecond, batchMax: 2})
	r.meetFrontend(wire.Peer{Frontend: 2, DataAddr: r.front.node.Addr(), Staged: true})
	for frontend, staged := range map[uint32]bool{1: false, 2: true} {
		e, inputs := r.batch(uint64(frontend), 2)
		for i := range e.Items {
			e.Items[i].Frontend = frontend
		}

		began := time.Now()
		r.Execute([]wire.Execute{e})
		for id, in := range inputs {
			r.checkOutput(id, in)
		}
		took := time.Since(began)

		for id := range inputs {
			h := r.front.wait(id).ResultHeader
			all := int64(h.Stages.Fetch) + int64(h.Stages.Wait) + h.Exec + int64(h.Stages.Reply)
			if h.Staged != staged || all > int64(took) || staged && h.Stages == (wire.Stages{}) {
				t.Errorf("frontend %d: %+v within %v, want stages: %v", frontend, h, took, staged)
			}
		}
	}
}
