package gateway

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"downbeat.dev/cuda/cudatest"
	cudaregions "downbeat.dev/cuda/regions"
	"downbeat.dev/frontend/gateway/oip"
)

// gpus are this host's GPUs, or the emulated driver.
type gpus struct{ cudaregions.Devices }

func (m *gpus) OpenRegion(handle [HandleBytes]byte, device int, size int64) (DeviceRegion, error) {
	r, err := m.Devices.OpenRegion(handle, device, size)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// withGPUs returns the options of a gateway with GPUs. Its cleanup, which runs after the gateway's, fails if a region
// stayed open.
func withGPUs(t *testing.T) Options {
	t.Helper()
	m := &gpus{}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return Options{ClientMemory: true, DeviceMemory: m}
}

// deviceBody returns the body of a request to register the memory of a handle.
func deviceBody(handle []byte, device, size int64) string {
	return fmt.Sprintf(`{"raw_handle":{"b64":%q},"device_id":%d,"byte_size":%d}`, base64.StdEncoding.EncodeToString(handle), device, size)
}

func registerDevice(t testing.TB, url, name, body string) (int, string) {
	t.Helper()
	code, _, text := call(t, "POST", url+"/v2/cudasharedmemory/region/"+name+"/register", strings.NewReader(body))
	return code, string(text)
}

func unregisterDevices(t testing.TB, url string) {
	t.Helper()
	if code, _, text := call(t, "POST", url+"/v2/cudasharedmemory/unregister", nil); code != http.StatusOK {
		t.Errorf("unregister all: %d %s", code, text)
	}
}

// TestConformanceCUDASharedMemory: the CUDA shared memory extension over REST, with memory of another process: register,
// status, inputs and outputs, unregister.
func TestConformanceCUDASharedMemory(t *testing.T) {
	owner := cudatest.StartOwner(t, floats(1, 2, 3, 4, 10, 20, 30, 40, 0, 0, 0, 0))
	server, _ := rest(t, withGPUs(t))
	if code, text := registerDevice(t, server.URL, "io", deviceBody(owner.Handle[:], 0, 48)); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	for path, want := range map[string]string{"/v2/cudasharedmemory/status": `[{"name":"io","device_id":0,"byte_size":48}]`,
		"/v2/cudasharedmemory/region/io/status": `[{"name":"io","device_id":0,"byte_size":48}]`, "/v2/systemsharedmemory/status": "[]"} {
		if _, _, text := call(t, "GET", server.URL+path, nil); string(text) != want {
			t.Errorf("%s: %s", path, text)
		}
	}
	if _, _, text := call(t, "GET", server.URL+"/v2", nil); !strings.Contains(string(text), `"cuda_shared_memory"`) {
		t.Errorf("extensions: %s", text)
	}

	infer := func(body string) (int, string) {
		code, _, text := call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(body))
		return code, string(text)
	}
	code, text := infer(inRegion("io", "io", 2, 0, 16, 32))
	if code != http.StatusOK || !strings.Contains(text, `{"name":"sum","datatype":"FP32","shape":[2,2],"parameters":{"shared_memory_region":"io","shared_memory_offset":32,"shared_memory_byte_size":16}}`) {
		t.Errorf("%d %s", code, text)
	}
	if got := owner.Content(); !bytes.Equal(got, floats(1, 2, 3, 4, 10, 20, 30, 40, 11, 22, 33, 44)) {
		t.Errorf("the owner has %x", got)
	}

	// Texts, whose lengths the gateway reads.
	words := "\x02\x00\x00\x00hi\x01\x00\x00\x00x"
	texts := cudatest.StartOwner(t, []byte(words))
	registerDevice(t, server.URL, "text", deviceBody(texts.Handle[:], 0, int64(len(words))))
	code, text = infer(inRegion("io", "", 1, 8, 24))
	if code != http.StatusOK || !strings.Contains(text, `"data":[33,44]`) {
		t.Errorf("at an offset: %d %s", code, text)
	}
	_, _, got := call(t, "POST", server.URL+"/v2/models/text/infer", strings.NewReader(fmt.Sprintf(`{"inputs":[{"name":"in","shape":[2,1],"datatype":"BYTES","parameters":{"shared_memory_region":"text","shared_memory_byte_size":%d}}]}`, len(words))))
	if !strings.Contains(string(got), `["\u003chi\u003e","\u003cx\u003e"]`) {
		t.Errorf("texts: %s", got)
	}

	// The system form's calls leave the region alone.
	call(t, "POST", server.URL+"/v2/systemsharedmemory/unregister", nil)
	call(t, "POST", server.URL+"/v2/systemsharedmemory/region/io/unregister", nil)
	if code, text := infer(inRegion("io", "", 1, 0, 16)); code != http.StatusOK {
		t.Errorf("after the other form's unregister: %d %s", code, text)
	}
	if code, _, text := call(t, "POST", server.URL+"/v2/cudasharedmemory/region/io/unregister", nil); code != http.StatusOK {
		t.Errorf("unregister: %d %s", code, text)
	}
	if code, text := infer(inRegion("io", "", 1, 0, 16)); code != http.StatusBadRequest || !strings.Contains(text, "Unable to find shared memory region: 'io'") {
		t.Errorf("after unregister: %d %s", code, text)
	}
	if _, _, text := call(t, "GET", server.URL+"/v2/cudasharedmemory/region/io/status", nil); !strings.Contains(string(text), "Unable to find cuda shared memory region: 'io'") {
		t.Errorf("status after unregister: %s", text)
	}
	unregisterDevices(t, server.URL)
	if _, _, text := call(t, "GET", server.URL+"/v2/cudasharedmemory/status", nil); string(text) != "[]" {
		t.Errorf("after unregister: %s", text)
	}
}

// TestConformanceCUDASharedMemoryGRPC: the same over gRPC. Closing the gateway releases what is still registered.
func TestConformanceCUDASharedMemoryGRPC(t *testing.T) {
	owner := cudatest.StartOwner(t, floats(1, 2, 0, 0))
	conn, _ := rpc(t, withGPUs(t))
	c := oip.NewGRPCInferenceServiceClient(conn)
	ctx := context.Background()
	register := func(handle []byte, device int64, size uint64) error {
		_, err := c.CudaSharedMemoryRegister(ctx, &oip.CudaSharedMemoryRegisterRequest{Name: "io", RawHandle: handle, DeviceId: device, ByteSize: size})
		return err
	}
	if err := register(owner.Handle[:], 0, 16); err != nil {
		t.Fatal(err)
	}
	r, err := c.CudaSharedMemoryStatus(ctx, &oip.CudaSharedMemoryStatusRequest{Name: "io"})
	if err != nil || len(r.Regions) != 1 || r.Regions["io"].GetName() != "io" || r.Regions["io"].ByteSize != 16 || r.Regions["io"].DeviceId != 0 {
		t.Errorf("%v %v", r, err)
	}

	text := func(s string) *oip.InferParameter {
		return &oip.InferParameter{ParameterChoice: &oip.InferParameter_StringParam{StringParam: s}}
	}
	request := sumRequest(nil, floats(10, 20))
	request.RawInputContents = request.RawInputContents[1:]
	request.Inputs[0].Shape = []int64{1, 2}
	request.Inputs[0].Parameters = map[string]*oip.InferParameter{"shared_memory_region": text("io"), "shared_memory_byte_size": whole(8)}
	request.Outputs = []*oip.ModelInferRequest_InferRequestedOutputTensor{{Name: "sum",
		Parameters: map[string]*oip.InferParameter{"shared_memory_region": text("io"), "shared_memory_offset": whole(8), "shared_memory_byte_size": whole(8)}}}
	answer, err := c.ModelInfer(ctx, request)
	if err != nil || len(answer.RawOutputContents) != 1 || len(answer.RawOutputContents[0]) != 0 {
		t.Fatalf("%v %v", answer, err)
	}
	if got := owner.Content(); !bytes.Equal(got, floats(1, 2, 11, 22)) {
		t.Errorf("the owner has %x", got)
	}

	for want, err := range map[string]error{
		"already in manager":                    register(owner.Handle[:], 0, 16),
		"63 bytes: must be the 64":              register(owner.Handle[:63], 0, 16),
		"device_id -1: must be 0 to ":           register(owner.Handle[:], -1, 16),
		"byte_size 18446744073709551615: must ": register(owner.Handle[:], 0, 1<<64-1),
	} {
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}

	if _, err := c.CudaSharedMemoryUnregister(ctx, &oip.CudaSharedMemoryUnregisterRequest{Name: "io"}); err != nil {
		t.Error(err)
	}
	if _, err := c.CudaSharedMemoryStatus(ctx, &oip.CudaSharedMemoryStatusRequest{Name: "io"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("status after unregister: %v", err)
	}
	if err := register(owner.Handle[:], 0, 16); err != nil {
		t.Errorf("registered again: %v", err)
	}
}

// TestRegisterCUDARefuses: each error of a region of device memory, and of tensors in it, has its own text.
func TestRegisterCUDARefuses(t *testing.T) {
	owner := cudatest.StartOwner(t, make([]byte, 64))
	server, _ := rest(t, withGPUs(t))
	good := deviceBody(owner.Handle[:], 0, 64)
	for name, c := range map[string]struct{ body, want string }{
		"no base64":      {`{"raw_handle":{"b64":"*"},"device_id":0,"byte_size":8}`, `raw_handle: b64: \"*\": must be 64 bytes in base64`},
		"no handle":      {`{"device_id":0,"byte_size":8}`, "raw_handle: 0 bytes: must be the 64 of a cudaIpcMemHandle_t"},
		"empty handle":   {`{"raw_handle":{},"device_id":0,"byte_size":8}`, "raw_handle: 0 bytes: must be the 64"},
		"a text":         {`{"raw_handle":"AAAA","device_id":0,"byte_size":8}`, "'{'"},
		"short":          {deviceBody(owner.Handle[:63], 0, 8), "raw_handle: 63 bytes: must be the 64"},
		"long":           {deviceBody(append(owner.Handle[:], 0), 0, 8), "raw_handle: 65 bytes: must be the 64"},
		"nobody's":       {deviceBody(make([]byte, 64), 0, 8), "Unable to open shared memory region: open shared memory: "},
		"no device":      {deviceBody(owner.Handle[:], 99, 8), "device_id 99: must be 0 to "},
		"negative":       {deviceBody(owner.Handle[:], -1, 8), "device_id -1: must be 0 to "},
		"no bytes":       {deviceBody(owner.Handle[:], 0, 0), "byte_size 0: must be 1 to "},
		"negative bytes": {deviceBody(owner.Handle[:], 0, -8), "byte_size -8: must not be negative"},
		"too large":      {deviceBody(owner.Handle[:], 0, 1<<40), "byte_size 1099511627776: must be 1 to "},
		"no JSON":        {`{`, "body"},
	} {
		if code, text := registerDevice(t, server.URL, "r", c.body); code != http.StatusBadRequest || !strings.Contains(text, c.want) {
			t.Errorf("%s: %d %s, want %s", name, code, text, c.want)
		}
	}
	if code, text := registerDevice(t, server.URL, strings.Repeat("x", regionNameMax+1), good); code != http.StatusBadRequest || !strings.Contains(text, "must be 1 to 256 bytes") {
		t.Errorf("a long name: %d %s", code, text)
	}

	// Both forms share one set of names.
	register(t, server.URL, "object", object(t, make([]byte, 64)), 0, 64)
	registerDevice(t, server.URL, "r", good)
	for _, name := range []string{"object", "r"} {
		if code, text := registerDevice(t, server.URL, name, good); code != http.StatusBadRequest || !strings.Contains(text, "shared memory region '"+name+"' already in manager") {
			t.Errorf("%s twice: %d %s", name, code, text)
		}
	}
	if code, text := register(t, server.URL, "r", object(t, make([]byte, 64)), 0, 64); code != http.StatusBadRequest || !strings.Contains(text, "already in manager") {
		t.Errorf("an object under a name of device memory: %d %s", code, text)
	}

	for name, c := range map[string]struct{ body, want string }{
		"beyond":       {tensorIn(`"shared_memory_region":"r","shared_memory_byte_size":8,"shared_memory_offset":57`, ""), `region \"r\" has 64 bytes`},
		"overflow":     {tensorIn(`"shared_memory_region":"r","shared_memory_byte_size":8,"shared_memory_offset":9223372036854775807`, ""), `region \"r\" has 64 bytes`},
		"unknown":      {tensorIn(`"shared_memory_region":"x","shared_memory_byte_size":8`, ""), "Unable to find shared memory region: 'x'"},
		"output small": {outputIn(`"shared_memory_region":"r","shared_memory_byte_size":4`), "should be at least 8 bytes"},
		"output far":   {outputIn(`"shared_memory_region":"r","shared_memory_byte_size":8,"shared_memory_offset":60`), `region \"r\" has 64 bytes`},
	} {
		if code, _, text := call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(c.body)); code != http.StatusBadRequest || !strings.Contains(string(text), c.want) {
			t.Errorf("%s: %d %s, want %s", name, code, text, c.want)
		}
	}
	unregisterDevices(t, server.URL)

	// With GPUs, but without permission.
	off := withGPUs(t)
	off.ClientMemory = false
	closed, _ := rest(t, off)
	if code, text := registerDevice(t, closed.URL, "r", good); code != http.StatusBadRequest || !strings.Contains(text, "client_shm") {
		t.Errorf("not allowed: %d %s", code, text)
	}
}

// TestUnregisterCUDAInUse: device memory is registered and unregistered during calls that use it; each call is
// answered, and withGPUs finds nothing open.
func TestUnregisterCUDAInUse(t *testing.T) {
	owner := cudatest.StartOwner(t, floats(1, 2))
	server, _ := rest(t, withGPUs(t))
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for range 50 {
				code, _, text := call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(inRegion("r", "", 1, 0, 0)))
				if code != http.StatusOK && !strings.Contains(string(text), "Unable to find shared memory region") {
					t.Errorf("%d %s", code, text)
				}
			}
		})
	}
	body := deviceBody(owner.Handle[:], 0, 8)
	for range 50 {
		if code, text := registerDevice(t, server.URL, "r", body); code != http.StatusOK {
			t.Errorf("%d %s", code, text)
		}
		unregisterDevices(t, server.URL)
	}
	wait.Wait()
}

// TestDeviceRowIsNotLent: a row long enough to be lent is copied if it lies in device memory.
func TestDeviceRowIsNotLent(t *testing.T) {
	content := bytes.Repeat([]byte{5}, wideBytes)
	owner := cudatest.StartOwner(t, content)
	server, _ := wideWith(t, func() {}, withGPUs(t))
	if code, text := registerDevice(t, server.URL, "r", deviceBody(owner.Handle[:], 0, wideBytes)); code != http.StatusOK {
		t.Fatal(text)
	}
	if code, text := askWide(t, server, 0, 1); code != http.StatusOK || !strings.Contains(text, `"data":[5]`) {
		t.Errorf("%d %s", code, text)
	}
	unregisterDevices(t, server.URL)
}

// TestCUDAWithoutGPU: a gateway without a GPU refuses every request with the same text, and lets clients unregister.
func TestCUDAWithoutGPU(t *testing.T) {
	server, _ := rest(t, Options{ClientMemory: true})
	for _, body := range []string{"", "{", deviceBody(make([]byte, 64), 0, 8)} {
		if code, text := registerDevice(t, server.URL, "r", body); code != http.StatusBadRequest ||
			text != `{"error":"CUDA shared memory is not supported here: there is no GPU whose memory this gateway can open; register system shared memory"}` {
			t.Errorf("%d %s", code, text)
		}
	}
	for _, path := range []string{"/v2/cudasharedmemory/status", "/v2/cudasharedmemory/region/r/status"} {
		if code, _, text := call(t, "GET", server.URL+path, nil); code != http.StatusOK || string(text) != "[]" {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	unregisterDevices(t, server.URL)
	if _, _, text := call(t, "GET", server.URL+"/v2", nil); strings.Contains(string(text), "cuda_shared_memory") {
		t.Errorf("extensions: %s", text)
	}
}
