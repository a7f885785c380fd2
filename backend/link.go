package backend

import (
	"errors"
	"fmt"
	"time"

	"downbeat.dev/core/control"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// attach sets the link that Done goes to, once, after it was opened with hello and the backend's events.
func (b *Backend) attach(l control.BackendLink) {
	b.link = l
	close(b.linked)
	b.tellChanges()
	b.tellSpareWork()
}

// linkNow returns the link if it has been attached, else nil.
func (b *Backend) linkNow() control.BackendLink {
	select {
	case <-b.linked:
		return b.link
	default:
		return nil
	}
}

// awaitLink returns the link once it has been attached: what the scheduler asks for can end before the caller of
// DialBackend has attached it. It returns nil when the backend is closed first.
func (b *Backend) awaitLink() control.BackendLink {
	select {
	case <-b.linked:
		return b.link
	case <-b.stop:
		return nil
	}
}

// tellDone sends a Done.
func (b *Backend) tellDone(d []wire.Done) {
	l := b.awaitLink()
	if l == nil {
		return
	}
	if err := l.Done(d); err != nil {
		b.log.Debug("done not sent", "err", err)
	}
}

// Link takes the link's state.
func (b events) Link(up bool, err error) {
	b.up.Store(up)
	if up {
		b.log.Info("scheduler connected", "gpus", len(b.gpus), "models", len(b.modelEntries()))
		b.tellChanges()
		b.tellSpareWork()
		return
	}

	// Orders of the lost link are not started any more: nobody would hear of their end.
	b.session.Add(1)
	b.peers.forgetPeers()

	if errors.Is(err, control.ErrClosed) { // by ourselves
		b.log.Info("scheduler left")
		return
	}
	b.log.Warn("scheduler lost", "err", err)
}

// Peers takes the frontends' addresses.
func (b events) Peers(p []wire.Peer) { b.peers.tellPeers(p) }

// Execute takes batches.
func (b events) Execute(batches []wire.Execute) {
	now, session := b.now(), b.session.Load()
	for i := range batches {
		e := &batches[i]
		if err := b.checkOrder(e); err != nil {
			b.log.Error("batch refused", "batch", e.Batch, "err", err)
			b.refuseBatch(e, model.ExecutionFailed, 0)
			continue
		}

		g := b.gpus[e.GPU]
		if g.isSick() {
			b.refuseBatch(e, model.NoBackend, g.pauseTime())
			continue
		}

		// Counted before the GPU has it, so that Drain never misses a batch.
		b.live.Add(1)
		err := g.acceptBatch(e, now, session)
		if err == nil {
			continue
		}

		b.live.Add(-1)
		if errors.Is(err, errNotLoaded) { // it was when the scheduler sent this: others have it, or will
			b.refuseBatch(e, model.NoBackend, 0)
			continue
		}
		b.refuseBatch(e, model.ExecutionFailed, g.pauseTime())
	}
}

func (b *Backend) checkOrder(e *wire.Execute) error {
	if int(e.GPU) >= len(b.gpus) {
		return fmt.Errorf("gpu: %d: this backend has %d", e.GPU, len(b.gpus))
	}

	// A model that was unloaded meanwhile is no error: acceptBatch gives its batch back.
	r := b.gpus[e.GPU].routeOf(e.Model)
	switch all := b.modelEntries(); {
	case int(e.Model) >= len(all):
		return fmt.Errorf("model: %d: this backend has %d", e.Model, len(all))
	case r != nil && (len(e.Items) == 0 || len(e.Items) > r.model.BatchMax):
		return fmt.Errorf("items: %d: model %s runs 1 to %d", len(e.Items), r.model.Name, r.model.BatchMax)
	}
	return nil
}

// refuseBatch fails a batch that was not accepted, or gives it back (NoBackend), which frontends are not told.
// The link's goroutine only.
func (b *Backend) refuseBatch(e *wire.Execute, reason model.Reason, pause time.Duration) {
	b.refused = b.refused[:0]
	for i, it := range e.Items {
		b.refused = append(b.refused, wire.ItemFailure{Index: uint32(i), Reason: reason})
		if p := b.peers.findPeer(it.Frontend); p != nil && !givenBack(reason) {
			h := wire.ResultHeader{ID: it.ID, Reason: reason}
			_ = p.sendMessage([][]byte{h.Append(nil)}) // Done tells it too
		}
	}

	b.tellDone([]wire.Done{{Batch: e.Batch, GPU: e.GPU, FreeIn: int64(pause), Failures: b.refused}})
}
