package gateway

import (
	"context"
	"errors"
	"io"
	"maps"
	"strings"
	"sync"

	"google.golang.org/grpc"

	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/oip"
)

// streamDepth bounds the requests under way on one stream; the next is read when one ends.
const streamDepth = 256

// ModelStreamInfer answers each request of a stream as soon as it is done, with the request's id: answers may
// overtake each other, as in Triton.
func (s *grpcServer) ModelStreamInfer(stream grpc.BidiStreamingServer[oip.ModelInferRequest, oip.ModelStreamInferResponse]) error {
	var wait sync.WaitGroup
	defer wait.Wait()

	// gRPC allows one sender at a time on a stream.
	var send sync.Mutex
	slots := make(chan struct{}, streamDepth)
	var turns sequenceTurns

	for {
		m := messages.Get().(*inferMessage)
		m.memory, m.reply.call = &s.g.memory, callOf(stream.Context())
		if err := stream.RecvMsg(m); err != nil {
			m.releaseMessage()
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}

		// A full stream is not read, so gRPC's flow control slows its client.
		slots <- struct{}{}
		before, done := turns.nextTurn(&m.inference.sequence)
		wait.Go(func() {
			defer func() { <-slots }()
			defer close(done)
			<-before

			reply := s.g.streamInfer(stream.Context(), m)
			send.Lock()
			defer send.Unlock()
			_ = stream.SendMsg(reply) // a broken stream ends the loop above
		})
	}
}

// sequenceTurns keeps the steps of each sequence of a stream in the order in which they arrived.
type sequenceTurns struct {
	latest map[string]chan struct{} // by sequence: closed when its latest step ends
}

// noTurn is closed: a request that waits for it proceeds at once.
var noTurn = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// turnsKept is the number of remembered sequences above which those without a step under way are removed.
const turnsKept = 1024

// nextTurn returns the channel that a request waits for, and the channel that it closes when it ends.
func (t *sequenceTurns) nextTurn(s *frontend.Sequence) (before <-chan struct{}, done chan struct{}) {
	done = make(chan struct{})
	if s.IsZero() {
		return noTurn, done
	}

	if len(t.latest) >= turnsKept {
		maps.DeleteFunc(t.latest, func(_ string, c chan struct{}) bool {
			select {
			case <-c:
				return true
			default:
				return false
			}
		})
	}
	if t.latest == nil {
		t.latest = map[string]chan struct{}{}
	}

	// Models do not share sequences, but waiting for another model's step of the same name costs little.
	key := s.String()
	before = noTurn
	if c, ok := t.latest[key]; ok {
		before = c
	}
	t.latest[key] = done
	return before, done
}

// streamInfer runs one request of a stream through the same code as a unary call, and returns the message to send.
func (g *Gateway) streamInfer(ctx context.Context, m *inferMessage) any {
	// Clone the texts before the call: after a fault the message is reused.
	failed := &oip.ModelInferResponse{ModelName: strings.Clone(m.name), ModelVersion: strings.Clone(m.version), Id: strings.Clone(m.id)}
	reply, f := g.grpcInfer(ctx, m)
	if f != nil {
		return &oip.ModelStreamInferResponse{ErrorMessage: f.text, InferResponse: failed}
	}
	return streamReply{reply}
}
