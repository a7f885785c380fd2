package gateway

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/picture"
)

// pictureTypes are the media types of the pictures that an input may take.
const pictureTypes = "image/jpeg, image/png"

// pictureKey is the parameter of an input in a model's metadata that says which pictures the input takes.
const pictureKey = "picture"

// newDecoders returns the slots of the pictures that are decoded at a time: half the cores, so that a flood of pictures
// leaves the others to answers.
func newDecoders() chan struct{} { return make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)) }

// isPicture reports whether an input was given as pictures.
func (t *input) isPicture(want *model.Tensor) bool {
	return want.Picture != nil && t.datatype == model.Bytes
}

// isPicture is isPicture of input k of an arranged call.
func (in *inference) isPicture(k int) bool { return in.inputs[k].isPicture(&in.model.Inputs[k]) }

// placedBytes returns the bytes that the row of input k between room.at and room.ends takes in its buffer: as many as it
// has, or those of the tensor that its picture becomes.
func (in *inference) placedBytes(k int) int {
	if in.isPicture(k) {
		return in.model.Inputs[k].RowBytes()
	}
	return in.room.ends[k] - in.room.at[k]
}

// fitPictures checks an input given as one picture for each row, by the pictures' headers. It notes the memory that
// decoding the largest one takes; a call decodes one after another.
func (in *inference) fitPictures(t *input, want *model.Tensor) *fault {
	rows, ok := pictureRows(t.shape)
	switch {
	case !ok:
		return invalidFault("model %q: input %q: shape %v: must be the number of rows, each of which is a picture, or %v of %s", in.model.Name, t.name, t.shape, modelShape(in.model, want), want.Datatype)
	case rows < 1 || rows > rowsMax:
		return invalidFault("model %q: input %q: shape %v: %d rows: must be within 1 and %d", in.model.Name, t.name, t.shape, rows, rowsMax)
	case in.rows >= 0 && int(rows) != in.rows:
		return invalidFault("model %q: input %q: shape %v: %d rows: the other inputs have %d", in.model.Name, t.name, t.shape, rows, in.rows)
	case !t.given:
		return invalidFault("model %q: input %q: has no data", in.model.Name, t.name)
	}

	in.rows, in.batched = int(rows), in.batched || rows > 1 || !in.model.Unbatched

	if t.json {
		if f := in.decodeBase64(t); f != nil {
			return f
		}
	}

	if n, whole := model.CountTexts(t.raw); !whole || n != in.rows {
		return invalidFault("model %q: input %q: %d whole elements of BYTES data: shape %v takes %d, each a 4-byte little-endian length and that many bytes", in.model.Name, t.name, n, t.shape, in.rows)
	}

	rest := t.raw
	for row := range in.rows {
		var file []byte
		file, rest, _ = model.NextText(rest)
		h, err := picture.ReadHeader(file)
		if err != nil {
			return pictureFault(in.model, t.name, row, err)
		}
		in.decoding = max(in.decoding, h.Memory(want))
	}
	return nil
}

// pictureRows reads the shape of an input of pictures: [rows] or [rows, 1].
func pictureRows(shape []int64) (rows int64, ok bool) {
	if len(shape) == 2 && shape[1] == 1 || len(shape) == 1 {
		return shape[0], true
	}
	return 0, false
}

// decodeBase64 decodes the elements of an input given in JSON, whose strings cannot hold a picture's bytes.
func (in *inference) decodeBase64(t *input) *fault {
	if f := in.takeBytes(int64(len(t.raw))); f != nil {
		return f
	}
	raw := make([]byte, 0, len(t.raw))
	rest := t.raw
	for row := 0; len(rest) > 0; row++ {
		text, more, ok := model.NextText(rest)
		if !ok {
			break // the count of elements tells
		}
		at := len(raw)
		raw = le.AppendUint32(raw, 0)

		var err error
		if raw, err = base64.StdEncoding.AppendDecode(raw, text); err != nil {
			return invalidFault("model %q: input %q: row %d: a picture in JSON must be base64: %v", in.model.Name, t.name, row, err)
		}
		le.PutUint32(raw[at:], uint32(len(raw)-at-4))
		rest = more
	}

	t.raw, t.json = raw, false
	return nil
}

// pictureFault returns the fault of a picture that cannot be decoded.
func pictureFault(m *frontend.Model, input string, row int, err error) *fault {
	if errors.Is(err, picture.ErrLimit) {
		return tooLarge("model %q: input %q: row %d: picture: %v", m.Name, input, row, err)
	}
	return invalidFault("model %q: input %q: row %d: picture: %v", m.Name, input, row, err)
}

// reserveMemory counts the memory that a call takes beside its message.
func (in *inference) reserveMemory(bodyMax int64) *fault {
	if f := in.reserveAnswer(bodyMax, in.text); f != nil {
		return f
	}
	return in.reservePictures(bodyMax)
}

// reservePictures counts the memory of a call's tensors that are made of pictures, and of decoding them. The tensors
// are bounded as if the client had sent them.
func (in *inference) reservePictures(bodyMax int64) *fault {
	if in.decoding == 0 {
		return nil
	}
	var row int64
	for k := range in.inputs {
		if in.isPicture(k) {
			row += int64(in.model.Inputs[k].RowBytes())
		}
	}

	if n := row * int64(in.rows); n > bodyMax {
		return tooLarge("model %q: %d pictures become tensors of %d bytes: must be at most %d: send fewer rows", in.model.Name, in.rows, n, bodyMax)
	}

	n := in.decoding + row*int64(in.rows)
	if most := in.memory.limit(); n > most {
		return tooLarge("model %q: decoding the largest picture and the tensors take %d bytes: must be at most %d, the memory of all messages", in.model.Name, n, most)
	}
	return in.takeBytes(n)
}

// pictureHook returns the Prepare hook of a row between room.at and room.ends: it decodes the row's picture to its place
// in the buffer, once a decoder is free. Without a picture there is no hook: nil.
func (g *Gateway) pictureHook(ctx context.Context, in *inference, row int) func([]byte) error {
	k := slices.IndexFunc(in.model.Inputs, func(t model.Tensor) bool { return t.Picture != nil })
	if in.decoding == 0 || k < 0 {
		return nil
	}

	want, at := &in.model.Inputs[k], 0
	for i := range k {
		at += in.placedBytes(i)
	}

	file, _, _ := model.NextText(in.inputs[k].raw[in.room.at[k]:])
	return func(input []byte) error {
		f := g.decodePicture(ctx, in.model, want, row, input[at:at+want.RowBytes()], file)
		if f == nil {
			return nil
		}
		if in.undecoded == nil {
			in.undecoded = f
		}
		return f
	}
}

// decodePicture waits for a decoder and decodes one picture. Both end at the deadline.
func (g *Gateway) decodePicture(ctx context.Context, m *frontend.Model, want *model.Tensor, row int, to, file []byte) *fault {
	select {
	case g.decoders <- struct{}{}:
	case <-ctx.Done():
		return lateFault(ctx, m, want.Name, row, "its turn to be decoded did not come")
	}
	defer func() { <-g.decoders }()

	err := picture.Decode(ctx, to, file, want)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return lateFault(ctx, m, want.Name, row, "it was not decoded")
	}
	return pictureFault(m, want.Name, row, err)
}

// lateFault returns the fault of a picture that was not decoded when its call ended.
func lateFault(ctx context.Context, m *frontend.Model, input string, row int, what string) *fault {
	f := invalidFault("model %q: input %q: row %d: picture: %s before the deadline", m.Name, input, row, what)
	f.http, f.code, f.reason = http.StatusGatewayTimeout, codes.DeadlineExceeded, model.DeadlineCannotBeMet.String()
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		f.http, f.code, f.reason, f.text = httpCanceled, codes.Canceled, model.Canceled.String(), "the client has gone"
	}
	return f
}

// untilDeadline returns the context in which a call's pictures are decoded. It ends at the deadline of the call's
// requests: the client's own, unless the model's SLO is the earlier or the only one.
func (in *inference) untilDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if in.decoding == 0 {
		return ctx, func() {}
	}
	if _, own := ctx.Deadline(); own && !in.model.SLOBinds {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, time.Now().Add(in.model.Deadline()))
}

// takePicture reads a body that is one picture, which its content type says. The answer is JSON.
func (in *inference) takePicture(contentType string, body []byte) *fault {
	want := in.model.Inputs
	if len(want) != 1 || want[0].Picture == nil {
		return invalidFault("model %q: header Content-Type: %.40q: the model must have one input, and a configuration that says how it takes pictures", in.model.Name, contentType)
	}
	if f := in.takeBytes(int64(len(body)) + model.TextLengthBytes); f != nil {
		return f
	}
	raw := append(le.AppendUint32(make([]byte, 0, model.TextLengthBytes+len(body)), uint32(len(body))), body...)
	in.inputs = append(in.inputs, input{name: want[0].Name, datatype: model.Bytes, shape: []int64{1}, raw: raw, given: true})
	return nil
}

// isPictureType reports whether a content type is that of a picture.
func isPictureType(contentType string) bool { return strings.HasPrefix(contentType, "image/") }
