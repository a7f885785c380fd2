package gateway

import (
	"math"
	"net/http"
	"slices"
	"time"

	"downbeat.dev/core/model"
)

// The generate extension takes one row of a model as a plain JSON object with a key for each input, and answers with
// one that has a key for each output. Every model answers a request once, so generate_stream is a stream of one
// event.

// generateRoutes registers the extension's calls below a model's path.
func (g *Gateway) generateRoutes(mux *http.ServeMux, path string) {
	mux.HandleFunc("POST "+path+"/generate", g.callsOf(&callForm{"generate", (*inference).parseGenerate, (*Gateway).writeGenerated}))
	mux.HandleFunc("POST "+path+"/generate_stream", g.callsOf(&callForm{"generate", (*inference).parseGenerate, (*Gateway).writeEvent}))
}

// parseGenerate reads the object. Keys that name inputs hold their data, id is the request's id, and parameters may
// hold inputs besides timeout and priority. Other keys are ignored: they are meant for other models.
func (in *inference) parseGenerate(_ *http.Request, text []byte) *fault {
	s := &jsonScanner{text: text}
	s.eachMember(func(key string) {
		switch {
		case in.hasInput(key):
			s.refuse(in.parseGenerated(s, key))
		case key == "id":
			in.id = s.readName(key)
		case key == "parameters":
			s.eachMember(func(key string) { s.refuse(in.parseGenerateParameter(s, key)) })
		default:
			s.skipAny()
		}
	})

	return s.finish()
}

func (in *inference) parseGenerateParameter(s *jsonScanner, key string) *fault {
	switch key {
	case "timeout", "priority":
		n := s.readInteger()
		if s.err != nil {
			return invalidFault("parameter %s: must be a whole number: %v", key, s.err)
		}
		return in.takeParameter(key, n)
	case "sequence_id", "sequence_start", "sequence_end":
		return in.takeSequence(key, viewText(s.skipAny()))
	}

	if in.hasInput(key) {
		return in.parseGenerated(s, key)
	}
	s.skipAny()
	return nil
}

func (in *inference) hasInput(name string) bool {
	return slices.ContainsFunc(in.model.Inputs, func(t model.Tensor) bool { return t.Name == name })
}

// parseGenerated reads a value as an input: one element, or an array of all elements of a row.
func (in *inference) parseGenerated(s *jsonScanner, name string) *fault {
	if len(in.inputs) >= tensorsMax {
		return invalidFault("inputs: more than %d tensors", tensorsMax)
	}
	s.nonFinite = true
	data := s.skipAny()
	s.nonFinite = false
	if s.err != nil {
		return nil // the caller reports it
	}

	k := slices.IndexFunc(in.model.Inputs, func(t model.Tensor) bool { return t.Name == name })
	want := &in.model.Inputs[k]
	t := input{name: want.Name, datatype: want.Datatype, shape: want.Shape}
	// An element of the input is a number, so that a text is a picture.
	if want.Picture != nil && data[0] == '"' {
		t.datatype, t.shape = model.Bytes, []int64{1}
	}

	// The parser of tensors requires an array.
	if data[0] != '[' { // a single element
		data = append(append([]byte{'['}, data...), ']')
	}

	if f := in.parseData(&t, data); f != nil {
		return f
	}
	if f := t.closeShape(in.model, len(t.raw)); f != nil {
		return f
	}
	if !in.model.Unbatched && !t.isPicture(want) {
		t.shape = batchShape(t.shape, 1)
	}
	in.inputs = append(in.inputs, t)
	return nil
}

// writeGenerated writes the answer as one object.
func (g *Gateway) writeGenerated(to http.ResponseWriter, in *inference, a answer) {
	g.writeObject(to, in, a, false)
}

// writeEvent writes the answer as a stream of one event.
func (g *Gateway) writeEvent(to http.ResponseWriter, in *inference, a answer) {
	g.writeObject(to, in, a, true)
}

// writeObject writes the outputs by name: a single element as a value, several as an array. In a stream the object is
// an event.
func (g *Gateway) writeObject(to http.ResponseWriter, in *inference, a answer, stream bool) {
	buffer := scratches.Get().(*scratch)
	defer buffer.putBack()
	w := &buffer.writer
	*w = answerWriter{ResponseWriter: to, until: time.Now().Add(g.times.answer), text: buffer.b[:0]}
	w.Header().Set("Content-Type", "application/json")
	if stream {
		w.Header().Set("Content-Type", "text/event-stream")
		w.text = append(w.text, "data: "...)
	}

	w.text = append(w.text, `{"model_name":`...)
	w.text = appendQuoted(w.text, []byte(in.model.Name))
	w.text = append(w.text, `,"model_version":`...)
	w.text = appendQuoted(w.text, []byte(in.model.Version))
	if in.id != "" {
		w.text = append(w.text, `,"id":`...)
		w.text = appendQuoted(w.text, []byte(in.id))
	}

	for i, o := range in.outputs {
		_, datatype := in.shapeOf(i)
		w.text = append(w.text, ',')
		w.text = append(appendQuoted(w.text, []byte(o.name)), ':')

		// Write a single element as a plain value, as generate's clients expect.
		if t := &in.model.Outputs[o.index]; t.RowElements() == 1 {
			w.text, _ = appendElements(w.text, a.raw[i], datatype, math.MaxInt)
		} else {
			w.writeElements(a.raw[i], datatype)
		}
	}

	w.text = append(w.text, '}')
	if stream {
		// An empty line ends an event (server-sent events).
		w.text = append(w.text, "\n\n"...)
	}
	w.writeBytes(w.text)
	buffer.b = w.text
}
