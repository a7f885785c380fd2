package frontend

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// Override replaces a model's files in the backends' repositories.
type Override struct {
	Config string            // the config.pbtxt; empty: the repository's
	Files  map[string][]byte // by path below the model's directory, such as "1/model.onnx"; requires a Config. Nil: the repository's files
}

// CommandCode is the reason why a command failed.
type CommandCode uint8

// The codes. The worst of several backends' codes is reported; CommandUnknown only if all backends report it.
const (
	CommandUnknown = CommandCode(wire.CommandUnknown) // there is no such model
	CommandRefused = CommandCode(wire.CommandRefused) // the backends' mode of model control forbids it, or too many commands are waiting
	CommandFailed  = CommandCode(wire.CommandFailed)  // the model could not be read or loaded; the previous one is still served
	CommandLost    = CommandCode(wire.CommandLost)    // a backend was lost, or none is connected
)

// CommandError reports why models could not be loaded or unloaded.
type CommandError struct {
	Code CommandCode
	Text string
}

// Error returns the backends' texts.
func (e *CommandError) Error() string { return e.Text }

// LoadModel makes every backend load the versions of a model that its policy selects, from the present files or those
// of o, and unload the others. It returns when the models are served. On a CommandError, the previous models stay in
// service. When ctx ends it returns ctx's error, and the backends continue.
func (c *Client) LoadModel(ctx context.Context, name string, o Override) error {
	command := wire.ModelCommand{Op: wire.LoadModel, Model: name}
	if o.Config == "" && len(o.Files) == 0 {
		return c.sendCommand(ctx, command)
	}

	// A backend fetches the replacement files like a request's input.
	b, err := c.Buffer(o.size())
	if err != nil {
		return fmt.Errorf("load model %s: %w", name, err)
	}
	defer b.Free()
	o.appendTo(b.Bytes()[:0])
	command.Payload = b.offerInput(false)
	defer b.withdrawOffer(false)
	return c.sendCommand(ctx, command)
}

// UnloadModel makes every backend unload all versions of a model, once accepted requests have been served. It
// succeeds if the model is not loaded.
func (c *Client) UnloadModel(ctx context.Context, name string) error {
	return c.sendCommand(ctx, wire.ModelCommand{Op: wire.UnloadModel, Model: name})
}

// size returns the number of bytes that appendTo appends.
func (o *Override) size() int {
	n := model.TextLengthBytes + len(o.Config)
	// Each file is its path, the length of the content, and the content.
	for path, content := range o.Files {
		n += 2*model.TextLengthBytes + len(path) + len(content)
	}
	return n
}

// appendTo packs the override as wire.ModelCommand's payload.
func (o *Override) appendTo(dst []byte) {
	dst = model.AppendText(dst, o.Config)

	// Sorted by path, so that the same override gives the same bytes.
	for _, path := range slices.Sorted(maps.Keys(o.Files)) {
		dst = model.AppendText(dst, path)
		content := o.Files[path]
		dst = append(binary.LittleEndian.AppendUint32(dst, uint32(len(content))), content...)
	}
}

// commands holds the commands that wait for an answer.
type commands struct {
	mu      sync.Mutex
	last    uint64                           // guarded by mu
	waiting map[uint64]chan wire.ModelAnswer // guarded by mu; each takes one answer
}

// sendCommand sends a command and waits for its answer.
func (c *Client) sendCommand(ctx context.Context, m wire.ModelCommand) error {
	answer := make(chan wire.ModelAnswer, 1)

	// The answer may come at once, so its channel exists before the command is sent.
	w := &c.commands
	w.mu.Lock()
	w.last++
	m.Number = w.last
	if w.waiting == nil {
		w.waiting = map[uint64]chan wire.ModelAnswer{}
	}
	w.waiting[m.Number] = answer
	w.mu.Unlock()

	defer func() {
		w.mu.Lock()
		delete(w.waiting, m.Number)
		w.mu.Unlock()
	}()

	link := c.link.Load()
	if link == nil || !c.isUp() {
		return &CommandError{CommandLost, errNoScheduler.Error()}
	}

	if err := link.Command(m); err != nil {
		return &CommandError{CommandLost, err.Error()}
	}

	select {
	case a := <-answer:
		if a.Code != wire.CommandDone {
			return &CommandError{CommandCode(a.Code), a.Text}
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.closing:
		return ErrClosed
	}
}

// isUp reports whether the session is open, even before any model was announced; cf. Connected.
func (c *Client) isUp() bool {
	c.session.mu.Lock()
	defer c.session.mu.Unlock()
	return c.session.up
}

// Answers ends commands.
func (e events) Answers(all []wire.ModelAnswer) {
	w := &e.c.commands
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range all {
		if answer := w.waiting[a.Number]; answer != nil {
			// The channel has room for one answer, and only one is sent: the entry is deleted under the same lock.
			answer <- a
			delete(w.waiting, a.Number)
		}
	}
}

// loseCommands ends the commands of a lost session.
func (c *Client) loseCommands() {
	w := &c.commands
	w.mu.Lock()
	defer w.mu.Unlock()
	for number, answer := range w.waiting {
		answer <- wire.ModelAnswer{Number: number, Code: wire.CommandLost, Text: "the scheduler was lost; the backends go on with it"}
		delete(w.waiting, number)
	}
}
