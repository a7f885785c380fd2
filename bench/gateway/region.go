package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"downbeat.dev"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/oip"
)

// shared is a shared memory object registered with a gateway, with space for every caller's tensors.
type shared struct {
	c      Config
	path   string
	memory []byte        // the mapped object, for bare servers
	next   atomic.Uint64 // the caller whose tensors a bare server takes next
}

const regionName = "bench"

// runShared compares tensors in messages to one gateway with tensors in a region of it, and with two bare servers of the
// same small requests: one runs the inference on the tensors where they lie, the other answers without inference. No
// gateway on these servers can be faster.
func (c Config) runShared(ctx context.Context, s *downbeat.System) ([]Row, error) {
	rest, rpc := s.Config().HTTP, s.Config().GRPC
	region, err := c.shareRegion(rest)
	if err != nil {
		return nil, err
	}
	defer region.closeRegion()

	// The servers end before the region is unmapped.
	var servers running
	defer servers.stopAll()
	bareREST, bareRPC, err := servers.servePair(region.newBareShared(nil).serveBoth)
	if err != nil {
		return nil, err
	}
	runREST, runRPC, err := servers.servePair(region.newBareShared(s.Client()).serveBoth)
	if err != nil {
		return nil, err
	}

	const sharing = "in shared memory"
	return c.compareAll(ctx, []contest{
		{"REST", []rival{{"in messages", c.restCallers, rest}, {sharing, region.restCallers, rest}, {bareRunning, region.restCallers, runREST}, {"bare", region.restCallers, bareREST}}},
		{"gRPC", []rival{{"in messages", c.grpcCallers, rpc}, {sharing, region.grpcCallers, rpc}, {bareRunning, region.grpcCallers, runRPC}, {"bare", region.grpcCallers, bareRPC}}},
	})
}

// shareRegion makes the object and registers it with the gateway at addr.
func (c Config) shareRegion(addr string) (*shared, error) {
	f, err := os.CreateTemp("/dev/shm", "downbeat-bench-*")
	if err != nil {
		return nil, err
	}
	defer f.Close()

	s := &shared{c: c, path: f.Name()}
	size := c.Callers * (c.Input + c.Output)
	if _, err = f.Write(make([]byte, size)); err == nil { // allocate the pages, as a client does
		s.memory, err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
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

func (s *shared) closeRegion() {
	_ = unix.Munmap(s.memory) // fails only if memory is no mapping
	os.Remove(s.path)
}

// inferNext answers one request of a bare server: it infers the next caller's tensor where it lies and writes the answer to
// that caller's output. A bare server does not read which caller asks.
func (s *shared) inferNext(ctx context.Context, client *frontend.Client) error {
	in, out := s.callerOffsets(int(s.next.Add(1)) % s.c.Callers)
	lent, ok := client.Lend(s.memory[in:][:s.c.Input])
	if !ok {
		return errors.New("the region cannot be read where it lies")
	}
	defer lent.Free()

	result, err := client.Infer(ctx, noop, lent)
	if err != nil {
		return err
	}
	copy(s.memory[out:], result.Data)
	result.Release()
	return nil
}

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
	url := "http://" + addr + "/v2/models/" + noop + "/infer"

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

// regionParameters describes a tensor's place in a region, in the protocol's typed parameters.
func regionParameters(at, size int) map[string]*oip.InferParameter {
	text := &oip.InferParameter{ParameterChoice: &oip.InferParameter_StringParam{StringParam: regionName}}
	whole := func(n int) *oip.InferParameter {
		return &oip.InferParameter{ParameterChoice: &oip.InferParameter_Int64Param{Int64Param: int64(n)}}
	}
	return map[string]*oip.InferParameter{"shared_memory_region": text, "shared_memory_offset": whole(at), "shared_memory_byte_size": whole(size)}
}

// grpcCallers name the offsets of their tensors in parameters.
func (s *shared) grpcCallers(addr string) ([]caller, func(), error) {
	conns, done, err := s.c.dialAll(addr)
	if err != nil {
		return nil, nil, err
	}

	var all []caller
	for i := range s.c.Callers {
		in, out := s.callerOffsets(i)
		// Callers share connections, as in the clients of one process.
		client, request := oip.NewGRPCInferenceServiceClient(conns[i%s.c.Conns]), s.c.makeRequest()
		request.RawInputContents = nil
		request.Inputs[0].Parameters = regionParameters(in, s.c.Input)
		request.Outputs = []*oip.ModelInferRequest_InferRequestedOutputTensor{{Name: "y", Parameters: regionParameters(out, s.c.Output)}}
		all = append(all, func(ctx context.Context) error {
			_, err := client.ModelInfer(ctx, request)
			return err
		})
	}
	return all, done, nil
}

// restAnswer and grpcAnswer are what the gateway answers to the last caller.
func (s *shared) restAnswer() []byte {
	_, out := s.callerOffsets(s.c.Callers - 1)
	return fmt.Appendf(nil, `{"model_name":"noop","model_version":"1","outputs":[{"name":"y","datatype":"UINT8","shape":[1,%d],"parameters":{"shared_memory_region":%q,"shared_memory_offset":%d,"shared_memory_byte_size":%d}}]}`,
		s.c.Output, regionName, out, s.c.Output)
}

func (s *shared) grpcAnswer() *oip.ModelInferResponse {
	_, out := s.callerOffsets(s.c.Callers - 1)
	r := s.c.makeResponse()
	r.RawOutputContents = nil
	r.Outputs[0].Parameters = regionParameters(out, s.c.Output)
	return r
}
