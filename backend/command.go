package backend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// Clients' commands, which arrive through a gateway and the scheduler. Each runs on its own goroutine; one at a time
// changes the loaded models.

const (
	commandsMax  = 64               // in progress at a time
	overrideMost = 10 * time.Second // to fetch a command's files
)

// Command takes commands from the scheduler. It runs on the link's goroutine.
func (b events) Command(list []wire.ModelCommand) {
	for _, c := range list {
		from := b.peers.findPeer(c.Frontend)

		// The link's goroutine must not wait: a client that sends many commands would stop batches.
		if err := b.beginCommand(c.Frontend); err != nil {
			b.answerCommand(c, err)
			continue
		}

		b.wait.Add(1)
		go func() {
			defer b.wait.Done()
			defer b.endCommand(c.Frontend)
			if b.awaitLink() == nil { // wait for the link: the scheduler must hear of changes, and before the command's end
				return
			}
			err := b.carryCommand(b.peers.ctx, c, from)
			if err != nil {
				// Clients can make up names, so the attribute is not "model", whose every value gets log lines of its own.
				b.log.Error("command failed", "op", c.Op, "asked", c.Model, "err", err)
			}
			b.answerCommand(c, err)
		}()
	}
}

// beginCommand counts a command of a frontend, or refuses it: a frontend whose files come slowly keeps no others out.
func (b *Backend) beginCommand(frontend uint32) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.commands.Begin(frontend) {
		return refusedCommand("%d commands of this session are under way already, of %d that all may have", b.commands.Of(frontend), commandsMax)
	}
	return nil
}

func (b *Backend) endCommand(frontend uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.commands.End(frontend)
}

// refusal is the reason for not carrying out a command, independent of the model.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

func refusedCommand(format string, args ...any) error { return &refusal{fmt.Sprintf(format, args...)} }

// answerCommand reports the result of a command.
func (b *Backend) answerCommand(c wire.ModelCommand, err error) {
	// The scheduler reports the worst answer of all backends, but ignores a backend that does not know the model if another
	// one does.
	a := wire.ModelAnswer{Number: c.Number}
	var no *refusal
	switch {
	case err == nil:
	case errors.As(err, &no):
		a.Code, a.Text = wire.CommandRefused, err.Error()
	case errors.Is(err, repo.ErrNotFound):
		a.Code, a.Text = wire.CommandUnknown, err.Error()
	default:
		a.Code, a.Text = wire.CommandFailed, err.Error()
	}

	if l := b.linkNow(); l != nil {
		if err := l.Answer(a); err != nil {
			b.log.Debug("answer not sent", "err", err)
		}
	}
}

// carryCommand carries out a command.
func (b *Backend) carryCommand(ctx context.Context, c wire.ModelCommand, from *peer) error {
	if c.Op == wire.TeachModel || c.Op == wire.RollBackModel {
		return b.carryLesson(ctx, c, from)
	}

	// A new shape belongs to a request of the model, whatever the mode of model control.
	if c.Op == wire.AddShape {
		return b.addClass(ctx, c)
	}

	// As in Triton, the operator decides whether clients may load and unload.
	r := b.config.repository
	if r == nil || r.control != ControlExplicit {
		mode := ControlNone
		if r != nil {
			mode = r.control
		}
		return refusedCommand("explicit model load / unload is not allowed: model_control is %q, want %q", mode, ControlExplicit)
	}

	switch c.Op {
	case wire.LoadModel:
		o, err := b.fetchOverride(ctx, c, from)
		if err != nil {
			return err
		}
		return b.loadOverridden(ctx, c.Model, o)
	case wire.UnloadModel:
		return b.unloadForgotten(ctx, c.Model)
	}
	return refusedCommand("command %v: not known here", c.Op)
}

// loadOverridden loads a model with an override, or from its own files if it is nil. After an error the loaded
// versions keep serving, with the override that they had.
func (b *Backend) loadOverridden(ctx context.Context, name string, o *override) error {
	if err := b.beginPlacing(ctx); err != nil {
		return errors.Join(err, o.discard())
	}
	defer b.endPlacing()

	// The override is in force while the files are read, and reverted if the load fails.
	r := b.config.repository
	before := r.replace(name, o)
	r.forget(name)
	err := b.loadNewest(ctx, name, "")

	stale := before
	if err != nil {
		r.replace(name, before)
		stale = o
	} else {
		b.keepCommanded(name, true, o)
	}
	b.tellUnserved()
	return errors.Join(err, stale.discard())
}

// unloadForgotten unloads a model and removes its override.
func (b *Backend) unloadForgotten(ctx context.Context, name string) error {
	if err := b.beginPlacing(ctx); err != nil {
		return err
	}
	defer b.endPlacing()

	r := b.config.repository
	err := b.unloadVersions(ctx, name, "")

	// A model that is not loaded is already as the client wants it.
	if errors.Is(err, errNotLoaded) {
		err = nil
	}
	if err == nil {
		r.forget(name)
		b.keepCommanded(name, false, nil)
		err = r.replace(name, nil).discard()
		if !slices.Contains(r.names(), name) {
			b.retireVersions(name, nil)
		}
	}
	b.tellUnserved()
	return err
}

// keepCommanded records the command's result on disk, before the model's previous files are removed. A failing disk
// does not undo the load.
func (b *Backend) keepCommanded(name string, loaded bool, o *override) {
	if err := b.config.repository.commanded.noteCommand(name, loaded, o); err != nil {
		b.log.Error("the list of loaded models was not saved for the next start", "model", name, "err", err)
	}
}

// fetchOverride reads a command's files from the memory of its frontend; nil if there are none.
func (b *Backend) fetchOverride(ctx context.Context, c wire.ModelCommand, from *peer) (*override, error) {
	n := int(c.Payload.Length)
	if n == 0 {
		return nil, nil
	}
	if from == nil {
		return nil, errors.New("the frontend that has the files is not known")
	}

	// The files travel over the data plane, like inputs: the scheduler never holds them.
	buffer, err := b.fetchPayload(ctx, c, from)
	if err != nil {
		return nil, fmt.Errorf("files: %w", err)
	}
	defer buffer.Free()
	return newOverride(b.config.repository.commanded.dir, c.Model, buffer.Bytes()[:n])
}

// awaitConnection returns the frontend's connection once it is open.
func (f *peer) awaitConnection(ctx context.Context) (*rdma.Peer, error) {
	t := time.NewTicker(time.Millisecond)
	defer t.Stop()
	for {
		if c := f.conn.Load(); c != nil {
			return c, nil
		}

		// After a failed attempt, retry after a pause until ctx ends.
		f.mu.Lock()
		if time.Since(f.tried) > connectPause {
			f.startConnecting()
		}
		f.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", errNoConnection, ctx.Err())
		case <-t.C:
		}
	}
}

// tellUnserved reports the models that are not served, and renews the hello of later sessions.
func (b *Backend) tellUnserved() {
	r, l := b.config.repository, b.linkNow()
	if r == nil || l == nil {
		return
	}
	list := r.unserved(b.modelEntries(), b.loadedEverywhere)
	b.mu.Lock()
	b.unserved, b.renewed = list[:min(len(list), wire.ModelsMax)], true
	list = b.unserved
	b.mu.Unlock()

	if err := errors.Join(l.Unserved(wire.Unserved{Models: list}), l.Renew(b.Hello())); err != nil {
		b.log.Debug("the models that are not served were not announced", "err", err)
	}
}

// loadedEverywhere reports whether every GPU takes batches of a model.
func (b *Backend) loadedEverywhere(number uint32) bool {
	for _, g := range b.gpus {
		if g.routeOf(number) == nil {
			return false
		}
	}
	return true
}

// failedModel describes a model that cannot be served, for the repository's index.
func failedModel(name, version string, why error) model.Info {
	return model.Info{Name: name, Version: version, Reason: cutReason(why.Error())}
}
