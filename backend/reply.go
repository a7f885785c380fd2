package backend

import (
	"sync/atomic"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// replier sends what became of orders. It belongs to one goroutine; a GPU has several.
type replier struct {
	gpu    *gpu
	header []byte
	parts  [][]byte
	done   [1]wire.Done
}

func newReplier(g *gpu) *replier {
	return &replier{gpu: g, header: make([]byte, 0, wire.StagedHeaderBytes), parts: make([][]byte, 0, 8)}
}

// replyAll is the GPU's second goroutine: it sends while the next batch runs.
func (g *gpu) replyAll() {
	defer g.wait.Done()
	r := newReplier(g)
	for o := range g.sending {
		r.replyTo(o)
	}
}

// replyTo sends every output and reason of o, then Done, and gives up its claim on o. Once the session
// is lost only outputs are sent: what failed here may be served elsewhere. Of a GPU that is lost, or whose batch
// failed as a whole, only Done tells: the scheduler gives its requests to others.
func (r *replier) replyTo(o *order) {
	b, c := r.gpu.backend, &r.gpu.counts
	live := o.session == b.session.Load()

	c.noteOrder(o)
	stages := o.stagesAt(b.now())
	held := r.holdFor(o)

	for i := range o.items {
		it := &o.items[i]
		if it.reason == model.ReasonNone {
			// Rows that are held go out after the loop, when it is known where all of them lie.
			if (held == nil || it.hold == 0) && !r.sendResult(it.reply, r.outputMessage(o, it, stages)) {
				o.noteUnsent(i)
			}
			continue
		}

		c.failed[it.reason].Add(1)

		// The scheduler may have another backend try: it decides what the frontend is told.
		untold := isUnreached(o, it) || o.broken && it.reason == model.ExecutionFailed
		o.failures = append(o.failures, wire.ItemFailure{Index: uint32(i), Reason: it.reason, Untold: untold})

		if live && it.reply != nil && !untold && !givenBack(it.reason) {
			h := wire.ResultHeader{ID: it.id, Reason: it.reason}
			r.header = h.Append(r.header[:0])
			r.parts = append(r.parts[:0], r.header)
			r.sendResult(it.reply, r.parts)
		}
	}

	if held != nil {
		r.tellHeld(o, held, stages)
	}

	// A batch has its number from the session that sent it: no other one knows it.
	if live {
		r.finishOrder(o)
	}
	o.releaseClaim()
}

// givenBack says whether others get a request with that reason: its GPU was lost or hangs while the batch ran
// (BackendLost), or before (NoBackend).
func givenBack(r model.Reason) bool { return r == model.BackendLost || r == model.NoBackend }

// isUnreached says whether a request failed because this backend cannot read from where its input lies, not now, or not before its
// batch had to begin, though the request may have time. Then the scheduler tells the frontend: another backend may be better placed, and the way from here may lead nowhere.
func isUnreached(o *order, it *item) bool {
	if it.composed && it.reason == model.InputUnavailable && o.isPartUnreached(it) {
		return true
	}
	return it.reason == model.InputUnavailable && (it.silent || it.late || it.source == nil || it.source.suspect.Load() || it.source.conn.Load() == nil)
}

// holdFor makes the order's slot one that is held, where some of its requests want outputs held and there is room. Orders
// without such requests pass by.
func (r *replier) holdFor(o *order) *heldSlot {
	if !o.composed || o.ended == 0 {
		return nil
	}
	return r.gpu.holdOutputs(o)
}

// tellHeld tells the frontends of rows whose outputs are held where they lie. The lease runs before the first is told.
func (r *replier) tellHeld(o *order, h *heldSlot, stages wire.Stages) {
	type row struct {
		at     int
		places []model.Descriptor
		inline [][]byte
	}
	// Where all rows lie is known before the first frontend is told: its release may be the last.
	var rows []row
	for i := range o.items {
		it := &o.items[i]
		if it.hold == 0 || it.reason != model.ReasonNone || it.reply == nil {
			continue
		}
		places, inline := h.holdRow(o, it, nil, nil)
		rows = append(rows, row{i, places, inline})
	}

	// What is not held lies in the slot as well, which is somebody else's as soon as all rows are released: it is copied
	// by the data plane when it is sent, and the first rows' frontends cannot release the last.
	r.gpu.backend.holds.startLease(h)
	for _, x := range rows {
		it := &o.items[x.at]
		head := o.resultHeader(it, stages)
		head.Held, head.Output = true, 0
		body := wire.AppendDescriptors(nil, x.places)
		head.Output = uint32(len(body))
		for _, part := range x.inline {
			head.Output += uint32(len(part))
		}
		r.header = head.Append(r.header[:0])
		r.parts = append(append(r.parts[:0], r.header, body), x.inline...)
		if !r.sendResult(it.reply, r.parts) {
			o.noteUnsent(x.at)
		}
	}
}

// sendResult reports false if the frontend cannot be told from here.
func (r *replier) sendResult(p *peer, parts [][]byte) bool {
	err := p.sendMessage(parts)
	if err != nil {
		r.gpu.counts.unsent.Add(1)
		r.gpu.backend.log.Debug("result not sent", "err", err)
	}
	return err == nil
}

// noteUnsent has Done say that an output did not reach its frontend. If that is still there, another backend may have a way to it;
// without a word the request would wait for its deadline.
func (o *order) noteUnsent(i int) {
	o.failures = append(o.failures, wire.ItemFailure{Index: uint32(i), Reason: model.BackendLost})
}

// resultHeader is what leads the message of a row that was executed.
func (o *order) resultHeader(it *item, stages wire.Stages) wire.ResultHeader {
	h := wire.ResultHeader{ID: it.id, Output: uint32(o.model.OutBytes), Exec: int64(o.ended - o.began), Answer: o.answer}

	// Frontends of an earlier version cannot read the stages.
	if it.reply.staged {
		h.Staged, h.Stages = true, stages
	}
	return h
}

// outputMessage makes the message of a row that was executed.
func (r *replier) outputMessage(o *order, it *item, stages wire.Stages) [][]byte {
	h := o.resultHeader(it, stages)
	if o.model.Varies {
		out, _ := device.Packed(o.run.OutputRow(o.model, 0, int(it.row))) // there: gpu.execute has looked
		h.Output = uint32(len(out))
		r.header = h.Append(r.header[:0])
		r.parts = append(r.parts[:0], r.header, out)
		return r.parts
	}
	r.header = h.Append(r.header[:0])
	r.parts = append(r.parts[:0], r.header)

	// Outputs go from where the executor wrote them: nothing is copied here.
	for k := range o.model.Outputs {
		r.parts = append(r.parts, o.run.OutputRow(o.model, k, int(it.row)))
	}
	return r.parts
}

// stagesAt tells how long the stages around the execution of an executed order took whose outputs are sent now.
func (o *order) stagesAt(now time.Duration) wire.Stages {
	fetched := max(time.Duration(o.fetched.Load()), o.came)
	return wire.Stages{Fetch: wire.StageOf(int64(min(fetched, o.began) - o.came)), Wait: wire.StageOf(int64(o.began - fetched)),
		Reply: wire.StageOf(int64(now - o.ended))}
}

// finishOrder tells the scheduler.
func (r *replier) finishOrder(o *order) {
	fetched := max(time.Duration(o.fetched.Load()), o.came)
	r.done[0] = wire.Done{Batch: o.batch, GPU: r.gpu.number, Fetch: int64(max(fetched-o.came, o.networkTail())), Failures: o.failures, FreeIn: int64(r.gpu.pauseTime())}

	// Times of a batch that did not run would teach the scheduler nothing.
	if o.ended > 0 {
		r.done[0].Wait, r.done[0].Exec = int64(max(o.began-fetched, 0)), int64(o.ended-o.began)
	}
	r.gpu.backend.tellDone(r.done[:])
}

// networkTail is what a round trip to the batch's frontends may take where their kernels' variance says more than echoes: the scheduler plans
// with the slowest fetches of late, which may have been lucky.
func (o *order) networkTail() (tail time.Duration) {
	for _, g := range o.groups {
		if c := g.source.conn.Load(); c != nil {
			tail = max(tail, c.Tail())
		}
	}
	return tail
}

// pauseTime is how long the scheduler should send the GPU nothing.
func (g *gpu) pauseTime() time.Duration {
	switch {
	case g.backend.draining.Load():
		return drainPause
	case g.lost.Load():
		return lostPause
	case g.hung.Load():
		return hungPause
	}
	return 0
}

// counts are a GPU's counters since its start.
type counts struct {
	batches, rows, unsent atomic.Uint64
	busy, fetch, wait     atomic.Int64 // ns
	failed                [model.ReasonCount]atomic.Uint64
}

func (c *counts) noteOrder(o *order) {
	// An order that never ran counts among the failures alone.
	if o.ended == 0 {
		return
	}
	c.batches.Add(1)
	c.rows.Add(uint64(o.rows))
	fetched := time.Duration(o.fetched.Load())
	c.fetch.Add(int64(max(fetched-o.came, 0)))
	c.wait.Add(int64(max(o.began-fetched, 0)))
}

// Stats is what one GPU has done since its start.
type Stats struct {
	GPU               string
	Batches, Rows     uint64
	Unsent            uint64              // results whose frontend was gone
	Busy, Fetch, Wait time.Duration       // summed over batches
	Failed            [reasonCount]uint64 // by model.Reason
	Lost, Hung        bool
	Failing           bool          // its latest batches have all failed
	Aside             int           // models that run on the processor, since the GPU's kernels do not support them
	Loaded            int           // models that it takes batches of
	Memory            device.Memory // of all its executors
}

// DataLinks returns what this host's kernel sees of the links with frontends.
func (b *Backend) DataLinks() LinkStats { return b.node.Stats().Links() }

// Stats returns one entry per GPU.
func (b *Backend) Stats() []Stats {
	var all []Stats
	for _, g := range b.gpus {
		c := &g.counts
		s := Stats{GPU: g.name, Batches: c.batches.Load(), Rows: c.rows.Load(), Unsent: c.unsent.Load(), Busy: time.Duration(c.busy.Load()),
			Fetch: time.Duration(c.fetch.Load()), Wait: time.Duration(c.wait.Load()), Lost: g.lost.Load(), Hung: g.hung.Load(), Failing: g.inRow.Load() >= failingMin}

		for i := range c.failed {
			s.Failed[i] = c.failed[i].Load()
		}

		s.Memory = g.sumMemory()
		for _, r := range *g.routes.Load() {
			if r != nil {
				s.Loaded++
				if r.isAside() {
					s.Aside++
				}
			}
		}

		all = append(all, s)
	}
	return all
}

// sumMemory adds up what the GPU's executors hold and have moved.
func (g *gpu) sumMemory() (sum device.Memory) {
	for _, e := range g.executors {
		sum.Add(e.Memory())
	}
	return sum
}
