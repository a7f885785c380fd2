package gateway

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"downbeat.dev/core/observe/spans"
)

// headerLength is the header of the binary tensor extension: the length of the JSON in front.
const headerLength = "Inference-Header-Content-Length"

// inferences pools the memory of REST calls.
var inferences = sync.Pool{New: func() any { return new(inference) }}

func (in *inference) putBack() {
	in.resetCall()
	if !in.isLarge() {
		inferences.Put(in)
	}
}

// callForm is the format of one kind of call.
type callForm struct {
	name  string                                                  // in the access log
	parse func(*inference, *http.Request, []byte) *fault          // parses a body
	write func(*Gateway, http.ResponseWriter, *inference, answer) // writes the model's answer
}

var inferForm = callForm{"rest", (*inference).parseInfer, (*Gateway).writeAnswer}

// callsOf returns the handler of a route's calls.
func (g *Gateway) callsOf(form *callForm) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		g.serveCall(w, r, r.PathValue("model"), r.PathValue("version"), form)
	}
}

// routeCalls passes inferences to their handler without the mux's search, which takes longer than reading their JSON.
// The mux handles all other calls, and inferences whose path is not plain.
func (g *Gateway) routeCalls(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if model := modelOfCall(r); model != "" {
			g.serveCall(w, r, model, "", &inferForm)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// modelOfCall returns the model of an inference that names no version. It returns "" for another call, or if the path
// contains something that the mux must resolve, such as an escape or "..".
func modelOfCall(r *http.Request) string {
	rest, models := strings.CutPrefix(r.URL.Path, "/v2/models/")
	name, infer := strings.CutSuffix(rest, "/infer")
	if !models || !infer || r.Method != http.MethodPost || r.URL.RawPath != "" || strings.ContainsAny(name, "/%") || name == "." || name == ".." {
		return ""
	}
	return name
}

// serveCall answers one call of a model over HTTP; an empty version means any.
func (g *Gateway) serveCall(w http.ResponseWriter, r *http.Request, name, version string, form *callForm) {
	body := scratches.Get().(*scratch)
	defer body.putBack()
	in := inferences.Get().(*inference)
	defer in.putBack()

	ctx := r.Context()
	if g.o.Tracer != nil {
		ctx, in.span = spans.Begin(ctx, g.o.Tracer, g.o.TraceRate, startOf(ctx), propagation.HeaderCarrier(r.Header))
		if name := in.span.Name(ctx); name != "" {
			w.Header().Set("Traceresponse", name)
		}
	}

	in.wanted = version
	a, f := g.runBody(ctx, w, r, name, in, body, form)
	in.endSpan(name, f)
	g.logCall(r.Context(), form.name, name, in, r.Header.Get("Traceparent"), f)

	if f != nil {
		g.metrics.countFault(name, f)
		writeFault(w, f)
		return
	}

	// The answer points into the outputs, so they stay alive until it is written.
	defer a.releaseOutputs()
	form.write(g, w, in, a)
}

// runBody reads and checks a call's body and runs the call.
func (g *Gateway) runBody(ctx context.Context, w http.ResponseWriter, r *http.Request, name string, in *inference, body *scratch,
	form *callForm) (a answer, f *fault) {
	if in.model, f = g.resolveModel(ctx, name, in.wanted); f != nil {
		return a, f
	}

	// Refuse a client that has used up its limits before its body takes memory.
	if client := clientOf(ctx); client != nil {
		if f = clientFault(client, client.CheckLimits(time.Now())); f != nil {
			return a, f
		}
	}

	in.memory, in.regions, in.text = &g.memory, &g.regions, true
	if f = g.readBody(w, r, in, body); f != nil {
		return a, f
	}
	if f = form.parse(in, r, body.b); f != nil {
		return a, f
	}

	g.chooseVersion(in)
	if f = g.chooseClass(ctx, in); f != nil {
		return a, f
	}
	if f = in.arrangeInputs(); f != nil {
		return a, f
	}
	if f = in.chooseOutputs(); f != nil {
		return a, f
	}
	return g.runCall(ctx, in)
}

// parseInfer parses a body. With the header, that many bytes are JSON and the rest is binary; a header of 0 means
// that all of it is one tensor. A body whose type is a picture's is one row.
func (in *inference) parseInfer(r *http.Request, body []byte) *fault {
	text := r.Header.Get(headerLength)
	if of := r.Header.Get("Content-Type"); text == "" && isPictureType(of) {
		return in.takePicture(of, body)
	}
	if text == "" {
		return in.parseRequest(body, nil)
	}

	head, err := strconv.Atoi(text)
	if err != nil || head < 0 || head > len(body) {
		return invalidFault("header %s: %.20q: must be a number within 0 and the body's length, %d", headerLength, text, len(body))
	}
	if head == 0 {
		return in.takeRaw(body)
	}
	return in.parseRequest(body[:head], body[head:])
}
