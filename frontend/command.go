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

// Override takes the place of a model's files in the backends' repositories.
type Override struct {
	Config string            // the config.pbtxt; empty: the repository's
	Files  map[string][]byte // by path below the model's directory, such as "1/model.onnx"; they need a Config. Nil: the repository's
}

// CommandCode says why a command was not done.
type CommandCode uint8

// The codes. Of several backends' answers the worst holds; CommandUnknown is the worst only if all say it.
const (
	CommandUnknown = CommandCode(wire.CommandUnknown) // there is no such model
	CommandRefused = CommandCode(wire.CommandRefused) // the backends' mode of model control does not allow it, or too many commands wait
	CommandFailed  = CommandCode(wire.CommandFailed)  // the model could not be read or loaded; what was loaded before is still served
	CommandLost    = CommandCode(wire.CommandLost)    // a backend was lost, or none is connected
)

// CommandError says why models could not be loaded or unloaded.
type CommandError struct {
	Code CommandCode
	Text string
}

// Error returns the backends' words.
func (e *CommandError) Error() string { return e.Text }

// LoadModel has every backend load the versions of a model that its policy serves, as the files are now or as o says;
// versions that are loaded and not among them are unloaded. It returns when the models are served, or with a
// CommandError, which leaves what was served, or with ctx's error, after which the backends go on with it.
func (c *Client) LoadModel(ctx context.Context, name string, o Override) error {
	command := wire.ModelCommand{Op: wire.LoadModel, Model: name}
	if o.Config == "" && len(o.Files) == 0 {
		return c.sendCommand(ctx, command)
	}

	// What replaces the repository's files is fetched by a backend, as a request's input is.
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

// UnloadModel has every backend unload all versions of a model, once what was accepted has been served. A model that is
// not loaded is unloaded already.
func (c *Client) UnloadModel(ctx context.Context, name string) error {
	return c.sendCommand(ctx, wire.ModelCommand{Op: wire.UnloadModel, Model: name})
}

// size is how many bytes appendTo appends.
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

	// In the order of the paths, so that the same override is the same bytes.
	for _, path := range slices.Sorted(maps.Keys(o.Files)) {
		dst = model.AppendText(dst, path)
		content := o.Files[path]
		dst = append(binary.LittleEndian.AppendUint32(dst, uint32(len(content))), content...)
	}
}

// commands are those that wait for an answer.
type commands struct {
	mu      sync.Mutex
	last    uint64                           // guarded by mu
	waiting map[uint64]chan wire.ModelAnswer // guarded by mu; each takes one answer
}

// sendCommand sends a command and waits for its answer.
func (c *Client) sendCommand(ctx context.Context, m wire.ModelCommand) error {
	answer := make(chan wire.ModelAnswer, 1)

	// The answer's place is made before the command leaves: the answer may come at once.
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

// isUp tells whether the session is open; unlike Connected also before any model was announced.
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
			// The channel has room for one answer, and only one is sent: the place is deleted under the same lock.
			answer <- a
			delete(w.waiting, a.Number)
		}
	}
}

// loseCommands ends the commands of a session that was lost.
func (c *Client) loseCommands() {
	w := &c.commands
	w.mu.Lock()
	defer w.mu.Unlock()
	for number, answer := range w.waiting {
		answer <- wire.ModelAnswer{Number: number, Code: wire.CommandLost, Text: "the scheduler was lost; the backends go on with it"}
		delete(w.waiting, number)
	}
}
