package gateway

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"downbeat.dev/core/observe/spans"
)

// headerLength is the header of the binary tensor extension: how long the JSON in front is.
const headerLength = "Inference-Header-Content-Length"

// inferences keeps the memory of REST calls.
var inferences = sync.Pool{New: func() any { return new(inference) }}

func (in *inference) putBack() {
	in.resetCall()
	if !in.isLarge() {
		inferences.Put(in)
	}
}

func (g *Gateway) restInfer(w http.ResponseWriter, r *http.Request) {
	g.serveCall(w, r, "rest", (*inference).parseInfer, (*Gateway).writeAnswer)
}

// serveCall answers one call over HTTP: parse takes its body apart, write puts the model's answer into words. The call's
// name is what the access log calls it.
func (g *Gateway) serveCall(w http.ResponseWriter, r *http.Request, name string,
	parse func(*inference, *http.Request, []byte) *fault, write func(*Gateway, http.ResponseWriter, *inference, answer)) {
	body := scratches.Get().(*scratch)
	defer body.putBack()
	in := inferences.Get().(*inference)
	defer in.putBack()

	ctx := r.Context()
	if g.o.Tracer != nil {
		ctx, in.span = spans.Begin(ctx, g.o.Tracer, startOf(ctx), propagation.HeaderCarrier(r.Header))
		w.Header().Set("Traceresponse", in.span.Name(ctx))
	}

	a, f := g.runBody(ctx, w, r, in, body, parse)
	in.endSpan(r.PathValue("model"), f)
	g.logCall(r.Context(), name, r.PathValue("model"), in, r.Header.Get("Traceparent"), f)

	if f != nil {
		g.metrics.countFault(r.PathValue("model"), f)
		writeFault(w, f)
		return
	}

	// The answer points into the outputs, so that they live until it is written.
	defer a.releaseOutputs()
	write(g, w, in, a)
}

// runBody reads and checks a call's body and runs what it asks for.
func (g *Gateway) runBody(ctx context.Context, w http.ResponseWriter, r *http.Request, in *inference, body *scratch,
	parse func(*inference, *http.Request, []byte) *fault) (a answer, f *fault) {
	if in.model, f = g.resolveModel(ctx, r.PathValue("model"), r.PathValue("version")); f != nil {
		return a, f
	}

	// A client that has used up what it may is refused before its body takes memory.
	client := clientOf(ctx)
	if f = clientFault(client, client.CheckLimits(time.Now())); f != nil {
		return a, f
	}

	in.memory, in.regions, in.text, in.wanted = &g.memory, &g.regions, true, r.PathValue("version")
	if f = g.readBody(w, r, in, body); f != nil {
		return a, f
	}
	if f = parse(in, r, body.b); f != nil {
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

// parseInfer takes a body apart. With the header, its number of bytes is JSON and the rest is binary; a header of 0 says
// that all is one tensor.
func (in *inference) parseInfer(r *http.Request, body []byte) *fault {
	text := r.Header.Get(headerLength)
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
