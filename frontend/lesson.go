package frontend

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

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
	// Sure is the probability that Version gave to Class, from 0 to 1: a classifier's score of it. The learner judges by
	// it. 0: not known; then the learner asks that version again when it judges.
	Sure float32
}

// Teach sends samples with their true classes to the model's learners on the backends. Backends read them from this
// process's memory; when Teach returns they have them. If nothing learns the model, the error is a CommandError with
// CommandUnknown.
func (c *Client) Teach(ctx context.Context, model string, samples []LabelledSample) error {
	if len(samples) == 0 {
		return errors.New("teach: no lessons, want one at least")
	}

	for i, l := range samples {
		if !(l.Sure >= 0 && l.Sure <= 1) {
			return fmt.Errorf("teach: lesson %d: probability %v of its class, want 0 to 1", i, l.Sure)
		}
	}

	// A command names one version. Mostly one version has answered all of them.
	var failed []error
	for _, g := range groupLessons(samples) {
		failed = append(failed, c.teachAnswered(ctx, model, g))
	}
	return errors.Join(failed...)
}

// lessons are the samples that one version has answered; empty: their answers are not known.
type lessons struct {
	version string
	head    int // bytes before each input: wire.LessonHead or wire.SureHead
	name    string
	samples []LabelledSample
}

// groupLessons returns the samples by the version that answered them, in the order of their first ones.
func groupLessons(all []LabelledSample) (groups []lessons) {
	place := map[string]int{}
	for _, l := range all {
		version := l.answeredBy()
		at, known := place[version]
		if !known {
			at = len(groups)
			place[version], groups = at, append(groups, lessons{version: version, head: wire.LessonHead})
		}
		groups[at].samples = append(groups[at].samples, l)
	}
	return groups
}

// answeredBy returns the version whose answer is sent with the sample. Class and answer have 16 bits each in a message: with
// more, the learner would take another class for the true one.
func (l *LabelledSample) answeredBy() string {
	if l.Class >= answersMost || l.Answered >= answersMost-1 {
		return ""
	}
	return l.Version
}

// answersMost bounds the classes that can be sent with an answer.
const answersMost = 1 << 16

// teachAnswered sends the samples that one version has answered.
func (c *Client) teachAnswered(ctx context.Context, model string, g lessons) (err error) {
	for _, form := range g.forms() {
		if err = c.teachVersion(ctx, model, form); !isRefused(err) {
			break
		}
	}
	return err
}

// forms returns the samples as they are sent until no backend refuses them. A backend of an earlier release knows no
// probabilities, or no answers either: it finds samples of another length, or classes that the model has not. All forms
// have one name, by which a backend that took one of them knows the next.
func (g lessons) forms() []lessons {
	g.head, g.name = g.chooseHead(), rand.Text()
	all := []lessons{g}
	if g.head == wire.SureHead {
		g.head = wire.LessonHead
		all = append(all, g)
	}
	if g.version != "" {
		g.version = ""
		all = append(all, g)
	}
	return all
}

// chooseHead returns the length of the heads: with probabilities if one is known and the length of all can tell so.
func (g *lessons) chooseHead() int {
	known := func(l LabelledSample) bool { return l.Sure > 0 }
	if g.version != "" && slices.ContainsFunc(g.samples, known) && wire.SureFits(len(g.samples), len(g.samples[0].Input)) {
		return wire.SureHead
	}
	return wire.LessonHead
}

// isRefused reports whether a backend has read a lesson and refused it.
func isRefused(err error) bool {
	var refused *CommandError
	return errors.As(err, &refused) && refused.Code == CommandFailed
}

// teachVersion sends samples, with the answers of the version that they name.
func (c *Client) teachVersion(ctx context.Context, model string, g lessons) error {
	// One buffer holds all samples, so that the backend reads them at once.
	size := 0
	for _, l := range g.samples {
		size += g.head + len(l.Input)
	}
	if size > wire.LessonBytesMax {
		return fmt.Errorf("teach: %d bytes, want at most %d", size, wire.LessonBytesMax)
	}

	b, err := c.Buffer(size)
	if err != nil {
		return fmt.Errorf("teach %s: %w", model, err)
	}
	defer b.Free()

	g.pack(b.Bytes()[:0])
	command := wire.ModelCommand{Op: wire.TeachModel, Model: model, Version: g.version, Shape: g.name, Payload: b.offerInput(false)}
	defer b.withdrawOffer(false)
	return c.sendCommand(ctx, command)
}

// pack appends the samples as wire.TeachModel says: each is its head and then the input.
func (g *lessons) pack(packed []byte) []byte {
	for _, l := range g.samples {
		packed = append(g.appendHead(packed, &l), l.Input...)
	}
	return packed
}

// appendHead appends a sample's class, with the answer and its probability if they are known.
func (g *lessons) appendHead(packed []byte, l *LabelledSample) []byte {
	class := l.Class
	if g.version != "" {
		class |= (l.Answered + 1) << 16
	}
	packed = binary.LittleEndian.AppendUint32(packed, class)
	if g.head != wire.SureHead {
		return packed
	}

	var sure uint16
	if l.Sure > 0 {
		sure = wire.PackProbability(l.Sure)
	}
	return binary.LittleEndian.AppendUint16(packed, sure)
}

// RollBack restores the weights of an earlier version of a learnt model, under a new version number. Learning does
// not replace them until the next drift.
func (c *Client) RollBack(ctx context.Context, model, version string) error {
	return c.sendCommand(ctx, wire.ModelCommand{Op: wire.RollBackModel, Model: model, Version: version})
}
