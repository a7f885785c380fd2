package gateway

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"downbeat.dev/frontend/gateway/oip"
)

// shared is a shared memory object registered with a gateway, with space for every caller's tensors.
type shared struct {
	c    Config
	path string
}

const regionName = "bench"

// shareRegion creates the object and registers it with the gateway at addr.
func (c Config) shareRegion(addr string) (*shared, error) {
	f, err := os.CreateTemp("/dev/shm", "downbeat-bench-*")
	if err != nil {
		return nil, err
	}

	s := &shared{c: c, path: f.Name()}
	size := c.Callers * (c.Input + c.Output)
	_, err = f.Write(make([]byte, size)) // allocate the pages, as a client does
	if e := f.Close(); err == nil {
		err = e
	}

	body := fmt.Sprintf(`{"key":"/%s","offset":0,"byte_size":%d}`, filepath.Base(s.path), size)
	if err == nil {
		err = postBody(context.Background(), http.DefaultClient, "http://"+addr+"/v2/systemsharedmemory/region/"+regionName+"/register", []byte(body))
	}
	if err != nil {
		s.closeRegion()
		return nil, err
	}
	return s, nil
}

func (s *shared) closeRegion() { os.Remove(s.path) }

// callerOffsets returns the offsets of caller i's input and output.
func (s *shared) callerOffsets(i int) (in, out int) {
	// Each caller has its own space, so that no answer overwrites another's.
	at := i * (s.c.Input + s.c.Output)
	return at, at + s.c.Input
}

// restCallers name the offsets of their tensors in JSON.
func (s *shared) restCallers(addr string) ([]caller, func(), error) {
	transport := &http.Transport{MaxIdleConnsPerHost: s.c.Callers, DisableCompression: true}
	client := &http.Client{Transport: transport}
	url := "http://" + addr + "/v2/models/" + s.c.model + "/infer"

	var all []caller
	for i := range s.c.Callers {
		in, out := s.callerOffsets(i)
		body := fmt.Appendf(nil, `{"inputs":[{"name":"x","shape":[1,%d],"datatype":"UINT8","parameters":{"shared_memory_region":%q,"shared_memory_offset":%d,"shared_memory_byte_size":%d}}],`+
			`"outputs":[{"name":"y","parameters":{"shared_memory_region":%q,"shared_memory_offset":%d,"shared_memory_byte_size":%d}}]}`,
			s.c.Input, regionName, in, s.c.Input, regionName, out, s.c.Output)
		all = append(all, func(ctx context.Context) error { return postBody(ctx, client, url, body) })
	}
	return all, transport.CloseIdleConnections, nil
}

// postBody sends a body and reads the answer, which must be 200.
func postBody(ctx context.Context, client *http.Client, url string, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}

	w, err := client.Do(r)
	if err != nil {
		return err
	}
	defer w.Body.Close()

	// Read the body to its end, else the connection cannot serve the next request.
	text, err := io.ReadAll(w.Body)
	if err == nil && w.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", w.Status, text)
	}
	return err
}

// grpcCallers name the offsets of their tensors in parameters.
func (s *shared) grpcCallers(addr string) ([]caller, func(), error) {
	conns, done, err := s.c.dialAll(addr)
	if err != nil {
		return nil, nil, err
	}

	// The protocol's parameters are typed: a region's name is text, offsets are numbers.
	text := func(s string) *oip.InferParameter {
		return &oip.InferParameter{ParameterChoice: &oip.InferParameter_StringParam{StringParam: s}}
	}
	whole := func(n int) *oip.InferParameter {
		return &oip.InferParameter{ParameterChoice: &oip.InferParameter_Int64Param{Int64Param: int64(n)}}
	}
	place := func(at, size int) map[string]*oip.InferParameter {
		return map[string]*oip.InferParameter{"shared_memory_region": text(regionName), "shared_memory_offset": whole(at), "shared_memory_byte_size": whole(size)}
	}

	var all []caller
	for i := range s.c.Callers {
		in, out := s.callerOffsets(i)
		// Callers share connections, as in the clients of one process.
		client, request := oip.NewGRPCInferenceServiceClient(conns[i%s.c.Conns]), s.c.makeRequest()
		request.RawInputContents = nil
		request.Inputs[0].Parameters = place(in, s.c.Input)
		request.Outputs = []*oip.ModelInferRequest_InferRequestedOutputTensor{{Name: "y", Parameters: place(out, s.c.Output)}}
		all = append(all, func(ctx context.Context) error {
			_, err := client.ModelInfer(ctx, request)
			return err
		})
	}
	return all, done, nil
}
