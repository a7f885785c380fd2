package backend

import (
	"context"
	"fmt"
	"slices"

	"downbeat.dev/core/repo"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// Learner learns a model on this backend.
type Learner interface {
	// Teach takes samples with their true classes, packed as in wire.TeachModel. version, unless empty, is the one that
	// answered them.
	Teach(version string, packed []byte) error
	// RollBack restores an earlier version's weights.
	RollBack(version string) error
}

// Learns sets a model's learner: clients' commands that teach it, or roll it back, go there.
func (b *Backend) Learns(model string, l Learner) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lessons == nil {
		b.lessons = map[string]Learner{}
	}
	b.lessons[model] = l
}

// carryLesson passes a command to a learner. If no learner here learns the model, the answer is that it is unknown:
// another backend may have the learner.
func (b *Backend) carryLesson(ctx context.Context, c wire.ModelCommand, from *peer) error {
	b.mu.Lock()
	l := b.lessons[c.Model]
	b.mu.Unlock()

	// Each backend is asked: the one that learns the model answers for all.
	if l == nil {
		return fmt.Errorf("model %s is not learnt here: %w", c.Model, repo.ErrNotFound)
	}

	if c.Op == wire.RollBackModel {
		return l.RollBack(c.Version)
	}

	if c.Payload.Length > wire.LessonBytesMax {
		return refusedCommand("samples of %s: %d bytes, want at most %d", c.Model, c.Payload.Length, wire.LessonBytesMax)
	}

	// They are sent again in another form if another backend refused this one.
	if b.hasLesson(c) {
		return nil
	}
	buffer, err := b.fetchPayload(ctx, c, from)
	if err != nil {
		return fmt.Errorf("samples of %s: %w", c.Model, err)
	}
	defer buffer.Free()
	if err := l.Teach(c.Version, buffer.Bytes()[:c.Payload.Length]); err != nil {
		return err
	}
	b.noteLesson(c)
	return nil
}

// lessonsKept is how many names of lessons are remembered. They are sent again at once, and few are on their way.
const lessonsKept = 1024

// lessonName names samples of a model.
type lessonName struct{ model, name string }

// hasLesson reports whether these samples were taken before.
func (b *Backend) hasLesson(c wire.ModelCommand) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return c.Shape != "" && slices.Contains(b.taught, lessonName{c.Model, c.Shape})
}

// noteLesson remembers that these samples were taken.
func (b *Backend) noteLesson(c wire.ModelCommand) {
	if c.Shape == "" || len(c.Shape) > wire.NameBytesMax {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.taught) == lessonsKept {
		b.taught = slices.Delete(b.taught, 0, 1)
	}
	b.taught = append(b.taught, lessonName{c.Model, c.Shape})
}

// fetchPayload reads a command's payload from the memory of its frontend. The caller must free the buffer.
func (b *Backend) fetchPayload(ctx context.Context, c wire.ModelCommand, from *peer) (*rdma.Buffer, error) {
	n := int(c.Payload.Length)
	if n == 0 || from == nil {
		return nil, fmt.Errorf("%d bytes of a frontend that is known: %v", n, from != nil)
	}
	buffer, err := b.node.Alloc(n)
	if err != nil {
		return nil, fmt.Errorf("fetch %d bytes: %w", n, err)
	}

	if err := b.readPayload(ctx, c, from, buffer); err != nil {
		buffer.Free()
		return nil, err
	}

	return buffer, nil
}

// readPayload reads it into a buffer.
func (b *Backend) readPayload(ctx context.Context, c wire.ModelCommand, from *peer, buffer *rdma.Buffer) error {
	ctx, cancel := context.WithTimeout(ctx, overrideMost)
	defer cancel()
	conn, err := from.awaitConnection(ctx)
	if err != nil {
		return fmt.Errorf("fetch: %w", err)
	}

	// Capacity one, so that the data plane never waits to report the end.
	done := make(chan error, 1)
	conn.ReadWithin(overrideMost, []rdma.Read{{Dst: buffer.Bytes()[:c.Payload.Length], Src: rdma.Remote(c.Payload)}}, nil, func(err error) { done <- err })
	if err := <-done; err != nil {
		return fmt.Errorf("fetch: %w", err)
	}

	return nil
}
