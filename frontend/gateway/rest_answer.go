package gateway

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"downbeat.dev/core/model"
)

// pieceBytes is the part of an answer that is written at a time. An answer in JSON is never entirely in memory,
// unless binary tensors follow it, which require its length in front.
const pieceBytes = 64 << 10

// joinedBytes is the largest answer with binary tensors that is assembled before it is written.
const joinedBytes = 4 << 10

// serverBuffer is the size from which net/http may send part of an answer before all of it exists.
const serverBuffer = 2048

// answerStall is how long a client may read nothing of an answer; times.answer bounds the time for all of it.
const answerStall = 10 * time.Second

// Content types of answers as header values, shared by all answers and never changed.
var (
	jsonContent   = []string{"application/json"}
	binaryContent = []string{"application/octet-stream"}
)

// answerWriter writes one REST answer, piece by piece, to a client that may stop reading.
type answerWriter struct {
	http.ResponseWriter
	until time.Time // deadline for the whole answer
	text  []byte    // JSON not written yet
	whole bool      // the JSON's length must be known before any of it is written
	begun bool
	err   error // the client disconnected or stopped reading: the rest is not written
}

// writeAnswer writes an inference response object, and binary tensors after it.
func (g *Gateway) writeAnswer(to http.ResponseWriter, in *inference, a answer) {
	buffer := scratches.Get().(*scratch)
	defer buffer.putBack()
	w := &buffer.writer
	*w = answerWriter{ResponseWriter: to, until: time.Now().Add(g.times.answer), text: buffer.b[:0],
		whole: slices.ContainsFunc(in.outputs, func(o output) bool { return o.binary && o.place.of == nil })}

	// The JSON's length, which tells a client where binary tensors begin, is known only at its end. Without such
	// tensors the text can be sent earlier.
	header := w.Header()
	header["Content-Type"] = jsonContent
	if w.whole {
		header["Content-Type"] = binaryContent
	}
	w.writeResponse(in, a)

	// The text may outgrow the buffer: the pool gets the larger one.
	defer func() { buffer.b = w.text }()

	size := len(w.text)
	for i, o := range in.outputs {
		if o.binary {
			size += len(a.raw[i])
		}
	}

	if w.whole {
		header[headerLength] = []string{strconv.Itoa(len(w.text))}
	}

	// The first piece may already have sent the headers, while the whole length was unknown. For an answer that fits
	// its buffer, net/http sets the length itself, more cheaply.
	if !w.begun && size >= serverBuffer {
		header["Content-Length"] = []string{strconv.Itoa(size)}
	}

	// Append small tensors to the text: copying them takes less time than a separate write.
	for i, o := range in.outputs {
		if !o.binary {
			continue
		}
		if len(w.text)+len(a.raw[i]) > joinedBytes {
			w.writeBytes(w.text)
			w.text = w.text[:0]
			w.writeBytes(a.raw[i])
			continue
		}
		w.text = append(w.text, a.raw[i]...)
	}
	w.writeBytes(w.text)
}

// writeBytes writes bytes in pieces; the client must read each in time.
func (w *answerWriter) writeBytes(b []byte) {
	w.begun = true
	for len(b) > 0 && w.err == nil {
		piece := b[:min(len(b), pieceBytes)]
		b = b[len(piece):]

		// A slow client may use all the time of an answer, but must not stall within it.
		deadline := time.Now().Add(answerStall)
		if deadline.After(w.until) {
			deadline = w.until
		}
		_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(deadline) // a recorder does not support it
		_, w.err = w.Write(piece)
	}
}

// flushText writes the text so far if it is long enough and may be written.
func (w *answerWriter) flushText() {
	if !w.whole && len(w.text) >= pieceBytes {
		w.writeBytes(w.text)
		w.text = w.text[:0]
	}
}

// writeResponse writes the inference response object, except for a last piece that stays in w.text.
func (w *answerWriter) writeResponse(in *inference, a answer) {
	b := append(w.text, `{"model_name":`...)
	b = appendQuoted(b, []byte(in.model.Name))
	b = append(b, `,"model_version":`...)
	b = appendQuoted(b, []byte(in.model.Version))
	if in.id != "" {
		b = append(b, `,"id":`...)
		b = appendQuoted(b, []byte(in.id))
	}

	if v := a.variant(in); v != nil {
		b = appendVariantJSON(b, v)
	}

	// From here on, text may be sent while the rest is written.
	w.text = append(b, `,"outputs":[`...)
	for i := range in.outputs {
		if i > 0 {
			w.text = append(w.text, ',')
		}
		w.writeOutput(in, a, i)
	}
	w.text = append(w.text, "]}"...)
}

// writeOutput writes the object of one output.
func (w *answerWriter) writeOutput(in *inference, a answer, i int) {
	o := in.outputs[i]
	shape, datatype := in.shapeOf(i)
	b := append(w.text, `{"name":`...)
	b = appendQuoted(b, []byte(o.name))
	b = append(b, `,"datatype":"`...)
	b = append(b, datatype...)
	b = append(b, `","shape":`...)
	b = appendShape(b, shape)

	if o.place.of != nil {
		w.text = append(o.place.appendParameters(b), '}')
		return
	}

	if o.binary {
		b = append(b, `,"parameters":{"binary_data_size":`...)
		b = strconv.AppendInt(b, int64(len(a.raw[i])), 10)
		w.text = append(b, "}}"...)
		return
	}

	w.text = append(b, `,"data":`...)
	w.writeElements(a.raw[i], datatype)
	w.text = append(w.text, '}')
}

// writeElements writes raw elements as a flat JSON array.
func (w *answerWriter) writeElements(raw []byte, datatype model.Datatype) {
	limit := pieceBytes
	if w.whole {
		limit = math.MaxInt
	}

	w.text = append(w.text, '[')
	for first := true; len(raw) > 0 && w.err == nil; first = false {
		if !first {
			w.text = append(w.text, ',')
		}
		w.text, raw = appendElements(w.text, raw, datatype, limit)
		w.flushText()
	}
	w.text = append(w.text, ']')
}

// reserveAnswer counts the memory of a call's answer before anything runs. It refuses an answer larger than bodyMax;
// text says that outputs which are not binary are written as JSON. BYTES outputs have no known size before they
// exist.
func (in *inference) reserveAnswer(bodyMax int64, text bool) *fault {
	row := rowSize(in.model.Outputs)
	var chosen, json int64 // per row, the requested outputs in the message: as raw bytes and as written
	var placed int64       // per row, the outputs that go to shared memory
	whole := false
	for _, o := range in.outputs {
		t := in.model.Outputs[o.index]
		raw := rowSize(in.model.Outputs[o.index : o.index+1])
		if o.classes > 0 {
			raw = int64(min(o.classes, t.RowElements())) * classText
		}
		if o.place.of != nil {
			placed += raw
			continue
		}

		chosen += raw
		switch {
		case text && !o.binary && o.classes == 0:
			json += int64(t.RowElements() * elementText(t.Datatype))
		default:
			json += raw
			whole = whole || o.binary
		}
	}

	rows := int64(in.rows)
	if largest := rows * max(chosen, json); largest > bodyMax {
		return tooLarge("model %q: outputs of %d rows: up to %d bytes: must be at most %d: ask for fewer rows or outputs, or for binary ones", in.model.Name, rows, largest, bodyMax)
	}

	// A backend returns all outputs of the model, not only the requested ones.
	need := rows * row
	if rows > 1 {
		need += rows * (chosen + placed) // gathered from the rows' results
	}

	// JSON in front of binary tensors stays in memory until its length is known.
	if whole {
		need += rows * (json - chosen)
	}
	return in.takeBytes(max(need, 0))
}

// classText is the approximate size of one class: a length, a value and an index.
const classText = 32

// rowSize returns the bytes of one row of tensors, as far as they are known.
func rowSize(tensors []model.Tensor) (n int64) {
	for i := range tensors {
		n += int64(tensors[i].RowBytes())
	}
	return n
}
