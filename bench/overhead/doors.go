package overhead

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/oip"
)

// errDropped means that a request ended by its deadline without an output.
var errDropped = errors.New("dropped")

// door sends one inference through one interface.
type door func(ctx context.Context, l load) error

// restDoor sends requests over REST, as JSON.
func restDoor(client *http.Client, address string) door {
	return func(ctx context.Context, l load) error {
		parameters := ""
		if l.timeout > 0 {
			parameters = fmt.Sprintf(`"parameters":{"timeout":%d},`, l.timeout.Microseconds())
		}

		body := fmt.Sprintf(`{%s"inputs":[{"name":"x","datatype":"UINT8","shape":[1,%d],"data":[%s0]}]}`, parameters, serveBytes, strings.Repeat("0,", serveBytes-1))
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v2/models/"+l.model+"/infer", strings.NewReader(body))
		if err != nil {
			return err
		}

		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()

		// The request has ended when the whole answer is here.
		text, err := io.ReadAll(answer.Body)
		switch {
		case err != nil:
			return err
		case answer.StatusCode == http.StatusGatewayTimeout:
			return errDropped
		case answer.StatusCode != http.StatusOK:
			return fmt.Errorf("status %d: %.200s", answer.StatusCode, text)
		}
		return nil
	}
}

// grpcDoor sends requests over gRPC, with raw tensors.
func grpcDoor(client oip.GRPCInferenceServiceClient) door {
	return func(ctx context.Context, l load) error {
		r := &oip.ModelInferRequest{ModelName: l.model, RawInputContents: [][]byte{make([]byte, serveBytes)},
			Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "UINT8", Shape: []int64{1, serveBytes}}}}
		if l.timeout > 0 {
			r.Parameters = map[string]*oip.InferParameter{"timeout": {ParameterChoice: &oip.InferParameter_Int64Param{Int64Param: l.timeout.Microseconds()}}}
		}

		_, err := client.ModelInfer(ctx, r)

		// One code covers deadlines that cannot be met and deadlines that passed before the scheduler was asked.
		if status.Code(err) == codes.DeadlineExceeded {
			return errDropped
		}
		return err
	}
}

// libraryDoor sends requests through the Go library, whose deadline is the context's.
func libraryDoor(client *frontend.Client) door {
	return func(ctx context.Context, l load) error {
		if l.timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, l.timeout)
			defer cancel()
		}

		r, err := client.InferCopy(ctx, l.model, make([]byte, serveBytes))
		r.Release()
		if errors.Is(err, context.DeadlineExceeded) {
			return errDropped
		}
		return err
	}
}
