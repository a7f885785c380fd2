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
	region *shared          // holds the tensors; nil: they lie in the messages
	answer []byte           // over REST
	head   int              // bytes of answer before its tensor
}

func (c Config) newBare(client *frontend.Client) *bareServer {
	answer, head := c.restAnswer()
	return &bareServer{c, client, nil, answer, head}
}

// newBareShared is a bareServer of requests whose tensors lie in a region.
func (s *shared) newBareShared(client *frontend.Client) *bareServer {
	answer := s.restAnswer()
	return &bareServer{s.c, client, s, answer, len(answer)}
}

// serveBoth serves until ctx ends.
func (b *bareServer) serveBoth(ctx context.Context, rest, rpc net.Listener) error {
	h := &http.Server{Handler: b}
	g := grpc.NewServer()
	response := b.makeResponse()
	if b.region != nil {
		response = b.region.grpcAnswer()
	}
	oip.RegisterGRPCInferenceServiceServer(g, &bareGRPC{bareServer: b, response: response})

	stop := context.AfterFunc(ctx, func() { h.Close(); g.Stop() })
	defer stop()
	go func() { _ = h.Serve(rest) }() // ends with the gRPC server, at the end of ctx
	return g.Serve(rpc)
}

// ServeHTTP implements http.Handler.
func (b *bareServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	result, err := b.inferREST(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer result.Release()

	tensor := b.answer[b.head:]
	if b.client != nil && b.region == nil {
		tensor = result.Data
	}

	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set(headerLength, strconv.Itoa(b.head))
	w.Header().Set("Content-Length", strconv.Itoa(len(b.answer)))
	_, _ = w.Write(b.answer[:b.head])
	_, _ = w.Write(tensor)
}

// inferREST reads a request and runs its inference, if the server has a client.
func (b *bareServer) inferREST(r *http.Request) (frontend.Result, error) {
	if b.client != nil && b.region == nil {
		return b.inferBody(r)
	}

	// Read the body to its end, the least that any server does.
	if _, err := io.Copy(io.Discard, r.Body); err != nil || b.client == nil {
		return frontend.Result{}, err
	}
	return frontend.Result{}, b.region.inferNext(r.Context(), b.client)
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
	if b.region != nil {
		return b.response, b.region.inferNext(ctx, b.client)
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
