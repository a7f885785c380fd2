package backend

import (
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// replier sends the results of orders. It belongs to one goroutine; a GPU has several.
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

// replyTo sends every output and reason of o, then Done, and releases o. After the session is lost it sends only
// outputs, because another backend may still serve the failed requests. For a lost GPU, or a batch that failed as a
// whole, it sends only Done: the scheduler gives the requests to other GPUs.
func (r *replier) replyTo(o *order) {
	b, c := r.gpu.backend, &r.gpu.counts
	live := o.session == b.session.Load()
	c.noteOrder(o)

	// All requests of a batch have the same stages.
	stages := o.stagesAt(b.now())
	held := r.holdFor(o)

	for i := range o.items {
		it := &o.items[i]
		if it.reason == model.ReasonNone {
			// Held rows are announced after the loop, when all their locations are known.
			if (held == nil || it.hold == 0) && !r.sendResult(it.reply, r.outputMessage(o, it, stages)) {
				o.noteUnsent(i)
			}
			continue
		}

		c.failed[it.reason].Add(1)

		// The scheduler may try another backend, so it decides what the frontend is told.
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

	// A batch's number means nothing to later sessions.
	if live {
		r.finishOrder(o)
	}
	o.releaseClaim()
}

// givenBack reports whether requests with that reason go to others: the GPU was lost or hung while the batch ran
// (BackendLost), or before (NoBackend).
func givenBack(r model.Reason) bool { return r == model.BackendLost || r == model.NoBackend }

// isUnreached reports whether a request failed because this backend cannot read from the input's node in time, although
// the request may have time left. Then the scheduler answers the frontend: it may try a backend that reaches the node,
// and this backend may not reach the frontend.
func isUnreached(o *order, it *item) bool {
	if it.composed && it.reason == model.InputUnavailable && o.isPartUnreached(it) {
		return true
	}
	return it.reason == model.InputUnavailable && (it.silent || it.late || it.source == nil || it.source.suspect.Load() || it.source.conn.Load() == nil)
}

// holdFor holds the order's slot if some of its requests want that and there is room; else it returns nil.
func (r *replier) holdFor(o *order) *heldSlot {
	if !o.composed || o.ended == 0 {
		return nil
	}
	return r.gpu.holdOutputs(o)
}

// tellHeld tells the frontends where their held outputs lie. The lease starts before the first is told.
func (r *replier) tellHeld(o *order, h *heldSlot, stages wire.Stages) {
	type row struct {
		at     int
		places []model.Descriptor
		inline [][]byte
	}

	// All locations are known before the first frontend is told, as its release may be the last.
	var rows []row
	for i := range o.items {
		it := &o.items[i]
		if it.hold == 0 || it.reason != model.ReasonNone || it.reply == nil {
			continue
		}
		places, inline := h.holdRow(o, it, nil, nil)
		rows = append(rows, row{i, places, inline})
	}

	// Other outputs lie in the slot as well, which is reused as soon as all rows are released. The data plane copies
	// them when they are sent, and the first rows' frontends cannot release the last row.
	r.gpu.backend.holds.startLease(h)
	for _, x := range rows {
		it := &o.items[x.at]

		// The message has the locations of the held outputs, and the other outputs themselves.
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

// sendResult returns false if the frontend cannot be reached from here.
func (r *replier) sendResult(p *peer, parts [][]byte) bool {
	err := p.sendMessage(parts)
	if err != nil {
		r.gpu.counts.unsent.Add(1)
		r.gpu.backend.log.Debug("result not sent", "err", err)
	}
	return err == nil
}

// noteUnsent makes Done report that an output did not reach its frontend. If the frontend is alive, another backend
// may reach it; otherwise the request would wait until its deadline.
func (o *order) noteUnsent(i int) {
	o.failures = append(o.failures, wire.ItemFailure{Index: uint32(i), Reason: model.BackendLost})
}

// resultHeader returns the header of an executed row's message.
func (o *order) resultHeader(it *item, stages wire.Stages) wire.ResultHeader {
	h := wire.ResultHeader{ID: it.id, Output: uint32(o.model.OutBytes), Exec: int64(o.ended - o.began), Answer: o.answer}

	// Frontends of an earlier version do not understand stages.
	if it.reply.staged {
		h.Staged, h.Stages = true, stages
	}
	return h
}

// outputMessage returns the message of an executed row.
func (r *replier) outputMessage(o *order, it *item, stages wire.Stages) [][]byte {
	h := o.resultHeader(it, stages)

	// An output whose size varies is packed into its row, and only the payload is sent.
	if o.model.Varies {
		out, _ := device.Packed(o.run.OutputRow(o.model, 0, int(it.row))) // ok was checked by failUnanswered
		h.Output = uint32(len(out))
		r.header = h.Append(r.header[:0])
		r.parts = append(r.parts[:0], r.header, out)
		return r.parts
	}
	r.header = h.Append(r.header[:0])
	r.parts = append(r.parts[:0], r.header)

	// Outputs are sent from where the executor wrote them, without a copy.
	for k := range o.model.Outputs {
		r.parts = append(r.parts, o.run.OutputRow(o.model, k, int(it.row)))
	}
	return r.parts
}

// stagesAt returns the stages of an executed order whose outputs are sent now.
func (o *order) stagesAt(now time.Duration) wire.Stages {
	fetched := max(time.Duration(o.fetched.Load()), o.came)
	return wire.Stages{Fetch: wire.StageOf(int64(min(fetched, o.began) - o.came)), Wait: wire.StageOf(int64(o.began - fetched)),
		Reply: wire.StageOf(int64(now - o.ended))}
}

// finishOrder sends Done to the scheduler.
func (r *replier) finishOrder(o *order) {
	fetched := max(time.Duration(o.fetched.Load()), o.came)
	r.done[0] = wire.Done{Batch: o.batch, GPU: r.gpu.number, Fetch: int64(max(fetched-o.came, o.networkTail())), Failures: o.failures, FreeIn: int64(r.gpu.pauseTime())}

	// The times of a batch that did not run are meaningless to the scheduler.
	if o.ended > 0 {
		r.done[0].Wait, r.done[0].Exec = int64(max(o.began-fetched, 0)), int64(o.ended-o.began)
	}
	r.gpu.backend.tellDone(r.done[:])
}

// networkTail returns the time that a round trip to the batch's frontends may take, where the kernel's variance
// exceeds the echoes. The scheduler plans with the slowest recent fetches, which may have been lucky.
func (o *order) networkTail() (tail time.Duration) {
	for _, g := range o.groups {
		if c := g.source.conn.Load(); c != nil {
			tail = max(tail, c.Tail())
		}
	}
	return tail
}

// pauseTime is how long the scheduler should leave the GPU alone.
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
