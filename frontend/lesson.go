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
	// Answered is the class that Version of this model answered, as Result.Version names it. The learner then need not ask
	// that version again. Version is empty if the answer is not known, or is another model's of the family.
	Answered uint32
	Version  string
}

// lessonsMost bounds the samples of one Teach, which a backend reads at once.
const lessonsMost = 16 << 20

// Teach sends samples with their true classes to the model's learners on the backends. Backends read them from this
// process's memory; when Teach returns they have them. If nothing learns the model, the error is a CommandError with
// CommandUnknown.
func (c *Client) Teach(ctx context.Context, model string, lessons []LabelledSample) error {
	if len(lessons) == 0 {
		return errors.New("teach: no lessons, want one at least")
	}

	// A command names one version. Mostly one version has answered all of them.
	var failed []error
	for len(lessons) > 0 {
		var of, others []LabelledSample
		for _, l := range lessons {
			if l.Version == lessons[0].Version {
				of = append(of, l)
			} else {
				others = append(others, l)
			}
		}
		failed = append(failed, c.teachAnswered(ctx, model, of))
		lessons = others
	}
	return errors.Join(failed...)
}

// teachAnswered sends the samples that one version has answered.
func (c *Client) teachAnswered(ctx context.Context, model string, lessons []LabelledSample) error {
	err := c.teachVersion(ctx, model, lessons[0].Version, lessons)

	// A backend of the release before knows no answers, and takes them for classes that the model has not.
	var refused *CommandError
	if lessons[0].Version != "" && errors.As(err, &refused) && refused.Code == CommandFailed {
		return c.teachVersion(ctx, model, "", lessons)
	}
	return err
}

// teachVersion sends the samples that a version has answered; empty: their answers are not known.
func (c *Client) teachVersion(ctx context.Context, model, version string, lessons []LabelledSample) error {
	// One buffer holds all samples, so that the backend reads them at once.
	size := 0
	for _, l := range lessons {
		size += 4 + len(l.Input)
	}
	if size > lessonsMost {
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
		class := l.Class
		if version != "" && l.Answered+1 < 1<<16 && l.Class < 1<<16 {
			class |= (l.Answered + 1) << 16
		}
		packed = append(binary.LittleEndian.AppendUint32(packed, class), l.Input...)
	}
	command := wire.ModelCommand{Op: wire.TeachModel, Model: model, Version: version, Payload: b.offerInput(false)}
	defer b.withdrawOffer(false)
	return c.sendCommand(ctx, command)
}

// RollBack restores the weights of an earlier version of a learnt model, under a new version number. Learning does
// not replace them until the next drift.
func (c *Client) RollBack(ctx context.Context, model, version string) error {
	return c.sendCommand(ctx, wire.ModelCommand{Op: wire.RollBackModel, Model: model, Version: version})
}
