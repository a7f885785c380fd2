package wire

import (
	"fmt"

	"downbeat.dev/core/model"
)

// Messages by which a gateway's client controls which models backends load, since version 5. A frontend's command
// goes to every backend; the scheduler sends one answer once all of them have answered.

// CommandOp is the operation of a ModelCommand.
type CommandOp uint8

// The operations.
const (
	LoadModel     CommandOp = 1 + iota // load the versions that the policy selects, from the present files; unload others
	UnloadModel                        // every version
	AddShape                           // load one more shape class of a model with variable dimensions or optional inputs
	TeachModel                         // learn from samples of requests with their true classes; since version 8
	RollBackModel                      // restore an earlier version's weights, under a new number; since version 8
	commandOpEnd
)

// String names the operation.
func (o CommandOp) String() string {
	if o > 0 && o < commandOpEnd {
		return [commandOpEnd]string{"", "load", "unload", "add shape", "teach", "roll back"}[o]
	}
	return fmt.Sprintf("operation %d", uint8(o))
}

// ModelCommand asks backends to change their loaded models. Frontend → scheduler → backends.
type ModelCommand struct {
	Number   uint64 // the sender's; the answer repeats it
	Op       CommandOp
	Frontend uint32 // the frontend whose memory Payload names; set by the scheduler
	Model    string
	Version  string // of AddShape and RollBackModel; of TeachModel: the one that answered the samples, if that is known
	// Shape is the class of AddShape, as returned by model.Info.ClassOf. TeachModel has a name for its samples there, the
	// same when they are sent again in another form: who has them answers that it is done. Empty: they have none.
	Shape string
	// Payload locates, in the frontend's memory, files that replace the repository's. They are packed as texts
	// (model.AppendText): the config.pbtxt, then the path and the content of each file. If it is empty, the
	// repository's files are used. For TeachModel it is the samples: for each a head (LessonHead), then the input.
	Payload model.Descriptor
}

// LessonBytesMax is the largest payload of a TeachModel.
const LessonBytesMax = 16 << 20

// AnswerCode is the result of a command.
type AnswerCode uint8

// The codes. The worst of several backends' codes is reported; Unknown only if all backends report it.
const (
	CommandDone    AnswerCode = iota
	CommandUnknown            // there is no such model
	CommandRefused            // the backend's mode of model control forbids it, or too many commands are waiting
	CommandFailed             // the model could not be read or loaded; the previous one is still served
	CommandLost               // a backend was lost, or none is connected
	answerCodeEnd
)

// ModelAnswer ends a command. Backend → scheduler → frontend.
type ModelAnswer struct {
	Number uint64
	Code   AnswerCode
	Text   string // the reason; empty if it was done
}

const (
	commandBytesMin  = 8 + 1 + 4 + 3*2 + 16
	answerBytesMin   = 8 + 1 + 2
	unservedBytesMin = 2
)

// AppendModelCommands appends frames carrying m.
func AppendModelCommands(dst []byte, m []ModelCommand) ([]byte, error) {
	return appendVaried(dst, TypeModelCommand, Version, m, func(e *encoder, c *ModelCommand) {
		e.u64(c.Number)
		e.b = append(e.b, byte(c.Op))
		e.u32(c.Frontend)
		e.text("model name", c.Model, NameBytesMax)
		e.text("model version", c.Version, NameBytesMax)
		e.text("shape", c.Shape, TextBytesMax)
		e.u64(c.Payload.Key)
		e.u32(c.Payload.Offset)
		e.u32(c.Payload.Length)
	})
}

// DecodeModelCommands decodes f into fresh memory: commands are rare.
func DecodeModelCommands(f Frame) ([]ModelCommand, error) {
	return decodeVaried(nil, f, TypeModelCommand, func(d *decoder, c *ModelCommand) {
		// Go evaluates these calls from left to right, the order of the fields.
		c.Number, c.Op, c.Frontend = d.u64(), CommandOp(d.u8()), d.u32()
		// After an error every read is 0, which would look like an unknown operation.
		if d.err == nil && (c.Op == 0 || c.Op >= commandOpEnd) {
			d.keepError(fmt.Errorf("%w: %v, want 1 to %d", ErrMalformed, c.Op, commandOpEnd-1))
		}

		c.Model = d.text("model name", NameBytesMax)
		c.Version = d.text("model version", NameBytesMax)
		c.Shape = d.text("shape", TextBytesMax)
		c.Payload.Key, c.Payload.Offset, c.Payload.Length = d.u64(), d.u32(), d.u32()
	})
}

// AppendModelAnswers appends frames carrying m; texts are cut to TextBytesMax.
func AppendModelAnswers(dst []byte, m []ModelAnswer) ([]byte, error) {
	return appendVaried(dst, TypeModelAnswer, Version, m, func(e *encoder, a *ModelAnswer) {
		e.u64(a.Number)
		e.b = append(e.b, byte(a.Code))
		e.text("why a command failed", cutText(a.Text), TextBytesMax)
	})
}

// DecodeModelAnswers decodes f into fresh memory.
func DecodeModelAnswers(f Frame) ([]ModelAnswer, error) {
	return decodeVaried(nil, f, TypeModelAnswer, func(d *decoder, a *ModelAnswer) {
		a.Number, a.Code = d.u64(), AnswerCode(d.u8())

		if d.err == nil && a.Code >= answerCodeEnd {
			d.keepError(fmt.Errorf("%w: answer %d, want 0 to %d", ErrMalformed, a.Code, answerCodeEnd-1))
		}
		a.Text = d.text("why a command failed", TextBytesMax)
	})
}

// Unserved lists the models of a backend's repository that it does not serve now, each with its Reason. It replaces
// BackendHello.Failed and earlier lists. Backend → scheduler.
type Unserved struct{ Models []model.Info }

// AppendUnserved appends a frame carrying u.
func AppendUnserved(dst []byte, u Unserved) ([]byte, error) { return appendUnserved(dst, u, Version) }

func appendUnserved(dst []byte, u Unserved, version uint16) ([]byte, error) {
	e := beginFrameAs(dst, TypeUnserved, version)
	e.putCount("models that are not served", len(u.Models), ModelsMax)
	for i := range u.Models {
		e.putModel(&u.Models[i])
	}
	return e.endFrame(1)
}

// DecodeUnserved decodes a frame that carries one Unserved.
func DecodeUnserved(f Frame) (u Unserved, err error) {
	d := openFrame(f, TypeUnserved, true)

	// The count was checked against the remaining bytes, so a short frame cannot cause a large allocation.
	if n := d.readCount("models that are not served", ModelsMax, modelBytesMin); n > 0 {
		u.Models = make([]model.Info, n)
	}

	for i := range u.Models {
		d.readModel(&u.Models[i])
	}
	return u, d.closeFrame()
}
