package gateway

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"

	"google.golang.org/grpc"

	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/oip"
)

// bareServer is net/http and grpc-go without a gateway. It reads a request and writes a fixed answer, or, with a
// client, runs the inference through the same system.
type bareServer struct {
	Config
	client *frontend.Client // nil: the answer is fixed
	answer []byte           // over REST
	head   int              // bytes of answer before its tensor
}

func (c Config) newBare(client *frontend.Client) *bareServer {
	answer, head := c.restAnswer()
	return &bareServer{c, client, answer, head}
}

// serveBoth serves until ctx ends.
func (b *bareServer) serveBoth(ctx context.Context, rest, rpc net.Listener) error {
	h := &http.Server{Handler: b}
	g := grpc.NewServer()
	oip.RegisterGRPCInferenceServiceServer(g, &bareGRPC{bareServer: b, response: b.makeResponse()})

	stop := context.AfterFunc(ctx, func() { h.Close(); g.Stop() })
	defer stop()
	go func() { _ = h.Serve(rest) }() // ends with the gRPC server, at the end of ctx
	return g.Serve(rpc)
}

// ServeHTTP implements http.Handler.
func (b *bareServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	tensor := b.answer[b.head:]

	// Read the body to its end, the least that any server does.
	if b.client == nil {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	} else {
		result, err := b.inferBody(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer result.Release()
		tensor = result.Data
	}

	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set(headerLength, strconv.Itoa(b.head))
	w.Header().Set("Content-Length", strconv.Itoa(len(b.answer)))
	_, _ = w.Write(b.answer[:b.head])
	_, _ = w.Write(tensor)
}

// inferBody reads a body's tensor straight into registered memory and runs the inference.
func (b *bareServer) inferBody(r *http.Request) (frontend.Result, error) {
	in, err := b.client.Buffer(b.Input)
	if err != nil {
		return frontend.Result{}, err
	}
	defer in.Free()

	// Skip the JSON before the tensor.
	if _, err := io.CopyN(io.Discard, r.Body, r.ContentLength-int64(b.Input)); err != nil {
		return frontend.Result{}, err
	}
	if _, err := io.ReadFull(r.Body, in.Bytes()); err != nil {
		return frontend.Result{}, err
	}
	return b.client.Infer(r.Context(), noop, in)
}

// bareGRPC is the service of a bareServer.
type bareGRPC struct {
	oip.UnimplementedGRPCInferenceServiceServer
	*bareServer
	response *oip.ModelInferResponse
}

// ModelInfer answers an inference.
func (b *bareGRPC) ModelInfer(ctx context.Context, r *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
	if b.client == nil {
		return b.response, nil
	}

	result, err := b.client.InferCopy(ctx, noop, r.RawInputContents...)
	if err != nil {
		return nil, err
	}
	defer result.Release()

	// grpc-go encodes the response after the return, so the output must live until then.
	response := b.makeResponse()
	copy(response.RawOutputContents[0], result.Data)
	return response, nil
}

var (
	_ oip.GRPCInferenceServiceServer = (*bareGRPC)(nil)
	_ http.Handler                   = (*bareServer)(nil)
)
