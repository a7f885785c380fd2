package frontend

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"downbeat.dev/core/wire"
)

// LabelledSample is an input of a model and its true class.
type LabelledSample struct {
	Input []byte // in the form of the model's single input in a request
	Class uint32
}

// lessonsMost bounds the samples of one Teach, which a backend reads at once.
const lessonsMost = 16 << 20

// Teach sends samples with their true classes to the model's learners on the backends. Backends read them from this
// process's memory; when Teach returns they have them. If nothing learns the model, the error is a CommandError with
// CommandUnknown.
func (c *Client) Teach(ctx context.Context, model string, lessons []LabelledSample) error {
	// One buffer holds all samples, so that the backend reads them at once.
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

// RollBack restores the weights of an earlier version of a learnt model, under a new version number. Learning does
// not replace them until the next drift.
func (c *Client) RollBack(ctx context.Context, model, version string) error {
	return c.sendCommand(ctx, wire.ModelCommand{Op: wire.RollBackModel, Model: model, Version: version})
}
