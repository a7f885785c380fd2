package backend

import (
	"errors"
	"fmt"
	"time"

	"downbeat.dev/core/control"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// attach sets the link that Done uses, once, after it was opened with hello and the backend's events.
func (b *Backend) attach(l control.BackendLink) {
	b.link = l
	close(b.linked)
	b.tellChanges()
	b.tellSpareWork()
}

// linkNow returns the link; nil until it has been attached.
func (b *Backend) linkNow() control.BackendLink {
	select {
	case <-b.linked:
		return b.link
	default:
		return nil
	}
}

// awaitLink returns the link once it has been attached, since an order of the scheduler can end before the caller of
// DialBackend has attached it. It returns nil if the backend is closed first.
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

// Link receives the link's state.
func (b events) Link(up bool, err error) {
	b.up.Store(up)
	if up {
		b.log.Info("scheduler connected", "gpus", len(b.gpus), "models", len(b.modelEntries()))
		b.tellChanges()
		b.tellSpareWork()
		return
	}

	// Orders of the lost link are not started: nobody would hear of their end.
	b.session.Add(1)
	b.peers.forgetPeers()

	if errors.Is(err, control.ErrClosed) { // closed by this backend
		b.log.Info("scheduler left")
		return
	}
	b.log.Warn("scheduler lost", "err", err)
}

// Peers receives the frontends' addresses.
func (b events) Peers(p []wire.Peer) { b.peers.tellPeers(p) }

// Execute receives batches.
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
		if errors.Is(err, errNotLoaded) { // it was loaded when the scheduler sent this: others have it, or will
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

	// A model that was unloaded meanwhile is no error: acceptBatch returns its batch.
	r := b.gpus[e.GPU].routeOf(e.Model)
	switch all := b.modelEntries(); {
	case int(e.Model) >= len(all):
		return fmt.Errorf("model: %d: this backend has %d", e.Model, len(all))
	case r != nil && (len(e.Items) == 0 || len(e.Items) > r.model.BatchMax):
		return fmt.Errorf("items: %d: model %s runs 1 to %d", len(e.Items), r.model.Name, r.model.BatchMax)
	}
	return nil
}

// refuseBatch fails a batch that was not accepted, or returns it (NoBackend), of which frontends are not told. Only
// the link's goroutine calls it.
func (b *Backend) refuseBatch(e *wire.Execute, reason model.Reason, pause time.Duration) {
	b.refused = b.refused[:0]
	for i, it := range e.Items {
		b.refused = append(b.refused, wire.ItemFailure{Index: uint32(i), Reason: reason})
		if p := b.peers.findPeer(it.Frontend); p != nil && !givenBack(reason) {
			h := wire.ResultHeader{ID: it.ID, Reason: reason}
			_ = p.sendMessage([][]byte{h.Append(nil)}) // Done reports it as well
		}
	}

	b.tellDone([]wire.Done{{Batch: e.Batch, GPU: e.GPU, FreeIn: int64(pause), Failures: b.refused}})
}
