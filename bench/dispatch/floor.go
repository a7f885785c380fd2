package dispatch

import (
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// floor moves what any dispatcher must move for a rig's load, and decides nothing. It reads a request's message and
// writes its entry to its model's queue. When the queue holds a full batch, its memory becomes the GPU's message, which
// the floor keeps until the batch is done, as a dispatcher must that serves the requests elsewhere when the GPU is lost. Then
// it reads the report. Entries, queues, messages in flight and reports are as many and as long as the engine's.
type floor struct {
	queues []*floorQueue     // by model id
	sent   [][]sched.Request // the messages, by number of the batch
	unused []uint32          // places in sent whose batch is done: the latest is taken first, because it is in the cache
	took   int64             // ℓ of a full batch
	exec   int64             // the sum of the reports
}

type floorQueue struct {
	n       int
	entries []sched.Request
}

// newFloor returns a floor for a rig of one core, and a generator of the same load for it.
func newFloor(r *rig) (*floor, *core) {
	f := &floor{took: r.set.execTable(r.set.Variants-1, 0)[batchMax]}
	c := r.newCore(0, f)
	for i := range r.set.Models {
		id := uint32(i)
		if r.families != nil {
			id = r.families[i]
		}
		for int(id) >= len(f.queues) {
			f.queues = append(f.queues, nil)
		}
		f.queues[id] = &floorQueue{i % batchMax, make([]sched.Request, batchMax)} // else all would be full at once
	}
	return f, c
}

// dispatch implements dispatcher.
func (f *floor) dispatch(c *core, now sched.Time, all []wire.Submit) {
	for i := range all {
		m := &all[i]
		q := f.queues[m.Model]
		x := &q.entries[q.n]
		x.ID, x.Deadline, x.Input, x.Model = sched.RequestID(m.ID), now.Add(sched.Duration(m.Budget)), m.Input, sched.ModelID(m.Model)
		x.Due, x.Origin, x.Priority, x.Flags, x.Avoid = uint32(x.Deadline/1000), 1, sched.Priority(m.Priority), 0, 0
		if q.n++; q.n == batchMax {
			f.sendBatch(c, now, q)
		}
	}
}

// sendBatch sends a queue's batch.
func (f *floor) sendBatch(c *core, now sched.Time, q *floorQueue) {
	if len(f.unused) == 0 {
		f.unused = append(f.unused, uint32(len(f.sent)))
		f.sent = append(f.sent, make([]sched.Request, batchMax))
	}

	last := len(f.unused) - 1
	place := f.unused[last]
	f.unused = f.unused[:last]
	f.sent[place], q.entries = q.entries, f.sent[place]
	q.n = 0

	c.enterBatch((int64(now)+f.took)>>slotShift&(slots-1), 0, wire.Done{Batch: uint64(place), Exec: f.took})
	c.batches++
	c.served += batchMax
}

// reportDone implements dispatcher.
func (f *floor) reportDone(_ int, m []wire.Done) {
	for i := range m {
		f.exec += m[i].Exec
		f.unused = append(f.unused, uint32(m[i].Batch))
	}
}

// nobody is a dispatcher that leaves the requests where they are: what is left is the generator.
type nobody struct{}

func (nobody) dispatch(*core, sched.Time, []wire.Submit) {}
func (nobody) reportDone(int, []wire.Done)               {}
