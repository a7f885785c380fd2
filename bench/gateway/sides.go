package gateway

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"downbeat.dev/frontend/gateway/oip"
)

const headerLength = "Inference-Header-Content-Length"

// restBody returns a REST inference with a binary tensor, and the length of its JSON.
func (c Config) restBody() ([]byte, int) {
	head := fmt.Sprintf(`{"inputs":[{"name":"x","shape":[1,%d],"datatype":"UINT8","parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}`, c.Input, c.Input)
	return append([]byte(head), make([]byte, c.Input)...), len(head)
}

// restAnswer returns the gateway's answer to it.
func (c Config) restAnswer() ([]byte, int) {
	head := fmt.Sprintf(`{"model_name":"noop","model_version":"1","outputs":[{"name":"y","datatype":"UINT8","shape":[1,%d],"parameters":{"binary_data_size":%d}}]}`, c.Output, c.Output)
	return append([]byte(head), make([]byte, c.Output)...), len(head)
}

// grpcCallers share c.Conns connections.
func (c Config) grpcCallers(addr string) ([]caller, func(), error) {
	conns, done, err := c.dialAll(addr)
	if err != nil {
		return nil, nil, err
	}

	var all []caller
	for i := range c.Callers {
		client, request := oip.NewGRPCInferenceServiceClient(conns[i%c.Conns]), c.makeRequest()
		all = append(all, func(ctx context.Context) error {
			r, err := client.ModelInfer(ctx, request)
			// Check the answer: an empty one would be fast as well.
			if err == nil && (len(r.RawOutputContents) != 1 || len(r.RawOutputContents[0]) != c.Output) {
				err = fmt.Errorf("answer %v", r)
			}
			return err
		})
	}
	return all, done, nil
}

// dialAll opens c.Conns connections; done closes them.
func (c Config) dialAll(addr string) (conns []*grpc.ClientConn, done func(), err error) {
	done = func() {
		for _, conn := range conns {
			conn.Close()
		}
	}

	for range c.Conns {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			done()
			return nil, nil, err
		}
		conns = append(conns, conn)
	}
	return conns, done, nil
}

// restCallers have a connection each.
func (c Config) restCallers(addr string) ([]caller, func(), error) {
	transport := &http.Transport{MaxIdleConnsPerHost: c.Callers, DisableCompression: true}
	client := &http.Client{Transport: transport}

	body, head := c.restBody()
	answer, _ := c.restAnswer()
	url := "http://" + addr + "/v2/models/" + noop + "/infer"

	var all []caller
	for range c.Callers {
		// One byte more than the answer, to detect a longer one.
		text := make([]byte, len(answer)+1)

		all = append(all, func(ctx context.Context) error {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
			if err != nil {
				return err
			}
			r.Header.Set(headerLength, strconv.Itoa(head))

			w, err := client.Do(r)
			if err != nil {
				return err
			}
			defer w.Body.Close()
			n, err := io.ReadFull(w.Body, text)
			if err != io.ErrUnexpectedEOF || w.StatusCode != http.StatusOK || n != len(answer) {
				return fmt.Errorf("%s: %s %w", w.Status, text[:n], err)
			}
			return nil
		})
	}
	return all, transport.CloseIdleConnections, nil
}
