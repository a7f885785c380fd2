package frontend

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"downbeat.dev/core/wire"
)

// LabelledSample is an input of a model and the class that it truly is.
type LabelledSample struct {
	Input []byte // as the model's only input has it in a request
	Class uint32
}

// lessonsMost bounds one Teach: what a backend reads at once.
const lessonsMost = 16 << 20

// Teach tells whoever learns a model on a backend what was true, so that it may learn from it. The backend reads the
// samples from this process's memory; when Teach returns it has them. Where nobody learns the model the error is a
// CommandError with CommandUnknown.
func (c *Client) Teach(ctx context.Context, model string, lessons []LabelledSample) error {
	// One buffer holds all: the backend reads it in one piece.
	size := 0
	for _, l := range lessons {
		size += 4 + len(l.Input)
	}
	switch {
	case len(lessons) == 0:
		return errors.New("teach: no lessons, want one at least")
	case size > lessonsMost:
		return fmt.Errorf("teach: %d bytes, want at most %d", size, lessonsMost)
	}

	b, err := c.Buffer(size)
	if err != nil {
		return fmt.Errorf("teach %s: %w", model, err)
	}
	defer b.Free()

	// Each sample is its class and then the input, as wire.TeachModel says.
	packed := b.Bytes()[:0]
	for _, l := range lessons {
		packed = append(binary.LittleEndian.AppendUint32(packed, l.Class), l.Input...)
	}
	command := wire.ModelCommand{Op: wire.TeachModel, Model: model, Payload: b.offerInput(false)}
	defer b.withdrawOffer(false)
	return c.sendCommand(ctx, command)
}

// RollBack puts the weights of an earlier version of a learnt model in force again, under a number of their own. Nothing
// that is learnt replaces them until the next drift.
func (c *Client) RollBack(ctx context.Context, model, version string) error {
	return c.sendCommand(ctx, wire.ModelCommand{Op: wire.RollBackModel, Model: model, Version: version})
}
