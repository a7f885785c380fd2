package gateway

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"downbeat.dev/frontend/gateway/oip"
)

// object creates a shared memory object of this user, and returns its key.
func object(t testing.TB, content []byte) string {
	t.Helper()
	f, err := os.CreateTemp(regionDir, "downbeat-test-*")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.Remove(f.Name()) })
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return "/" + filepath.Base(f.Name())
}

func content(t testing.TB, key string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(regionDir, key))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func register(t testing.TB, url, name, key string, offset, size int64) (int, string) {
	t.Helper()
	code, _, text := call(t, "POST", url+"/v2/systemsharedmemory/region/"+name+"/register", strings.NewReader(fmt.Sprintf(`{"key":%q,"offset":%d,"byte_size":%d}`, key, offset, size)))
	return code, string(text)
}

// inRegion returns a REST request for sum whose tensors lie at offsets of regions; out empty: in the answer.
func inRegion(in, out string, rows int, offsets ...int) string {
	size := 8 * rows
	outputs := ""
	if out != "" {
		outputs = fmt.Sprintf(`,"outputs":[{"name":"sum","parameters":{"shared_memory_region":%q,"shared_memory_offset":%d,"shared_memory_byte_size":%d}},{"name":"big"}]`, out, offsets[2], size)
	}
	return fmt.Sprintf(`{"inputs":[{"name":"a","shape":[%[1]d,2],"datatype":"FP32","parameters":{"shared_memory_region":%[2]q,"shared_memory_offset":%[3]d,"shared_memory_byte_size":%[5]d}},
		{"name":"b","shape":[%[1]d,2],"datatype":"FP32","parameters":{"shared_memory_region":%[2]q,"shared_memory_offset":%[4]d,"shared_memory_byte_size":%[5]d}}]%[6]s}`, rows, in, offsets[0], offsets[1], size, outputs)
}

// TestConformanceSharedMemory: the system shared memory extension over REST: register, status, inputs and outputs in
// regions, unregister.
func TestConformanceSharedMemory(t *testing.T) {
	server, _ := rest(t, Options{ClientMemory: true})
	key := object(t, append(make([]byte, 16), floats(1, 2, 3, 4, 10, 20, 30, 40, 0, 0, 0, 0)...))
	if code, text := register(t, server.URL, "io", key, 16, 48); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	for _, path := range []string{"/v2/systemsharedmemory/status", "/v2/systemsharedmemory/region/io/status"} {
		if _, _, text := call(t, "GET", server.URL+path, nil); string(text) != `[{"name":"io","key":"`+key+`","offset":16,"byte_size":48}]` {
			t.Errorf("%s: %s", path, text)
		}
	}
	if _, _, text := call(t, "GET", server.URL+"/v2", nil); !strings.Contains(string(text), `"system_shared_memory"`) {
		t.Errorf("extensions: %s", text)
	}

	infer := func(body string) (int, string) {
		code, _, text := call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(body))
		return code, string(text)
	}
	code, text := infer(inRegion("io", "io", 2, 0, 16, 32))
	if code != http.StatusOK || !strings.Contains(text, `{"name":"sum","datatype":"FP32","shape":[2,2],"parameters":{"shared_memory_region":"io","shared_memory_offset":32,"shared_memory_byte_size":16}}`) ||
		!strings.Contains(text, `"name":"big","datatype":"BOOL","shape":[2,2],"data":[false,false,false,false]`) {
		t.Errorf("%d %s", code, text)
	}
	if got := content(t, key)[48:]; string(got) != string(floats(11, 22, 33, 44)) {
		t.Errorf("the region has %x", got)
	}

	// Texts in a region, and a class in one.
	words := "\x02\x00\x00\x00hi\x01\x00\x00\x00x"
	register(t, server.URL, "text", object(t, []byte(words)), 0, int64(len(words)))
	code, _, got := call(t, "POST", server.URL+"/v2/models/text/infer", strings.NewReader(fmt.Sprintf(`{"inputs":[{"name":"in","shape":[2,1],"datatype":"BYTES","parameters":{"shared_memory_region":"text","shared_memory_byte_size":%d}}]}`, len(words))))
	if code != http.StatusOK || !strings.Contains(string(got), `["\u003chi\u003e","\u003cx\u003e"]`) {
		t.Errorf("texts: %d %s", code, got)
	}

	if code, _, text := call(t, "POST", server.URL+"/v2/systemsharedmemory/region/io/unregister", nil); code != http.StatusOK {
		t.Errorf("unregister: %d %s", code, text)
	}
	if code, text := infer(inRegion("io", "", 2, 0, 16)); code != http.StatusBadRequest || !strings.Contains(text, "Unable to find shared memory region: 'io'") {
		t.Errorf("after unregister: %d %s", code, text)
	}
	if code, _, _ := call(t, "POST", server.URL+"/v2/systemsharedmemory/unregister", nil); code != http.StatusOK {
		t.Errorf("unregister all: %d", code)
	}
	if _, _, text := call(t, "GET", server.URL+"/v2/systemsharedmemory/status", nil); string(text) != "[]" {
		t.Errorf("after unregister: %s", text)
	}
}

// TestConformanceSharedMemoryGRPC: the same over gRPC, whose raw contents omit tensors in regions; and CUDA's form.
func TestConformanceSharedMemoryGRPC(t *testing.T) {
	conn, _ := rpc(t, Options{ClientMemory: true})
	c := oip.NewGRPCInferenceServiceClient(conn)
	ctx := context.Background()
	key := object(t, floats(1, 2, 0, 0))
	if _, err := c.SystemSharedMemoryRegister(ctx, &oip.SystemSharedMemoryRegisterRequest{Name: "io", Key: key, ByteSize: 16}); err != nil {
		t.Fatal(err)
	}
	r, err := c.SystemSharedMemoryStatus(ctx, &oip.SystemSharedMemoryStatusRequest{})
	if err != nil || r.Regions["io"].GetKey() != key || r.Regions["io"].ByteSize != 16 {
		t.Errorf("%v %v", r, err)
	}

	text := func(s string) *oip.InferParameter {
		return &oip.InferParameter{ParameterChoice: &oip.InferParameter_StringParam{StringParam: s}}
	}
	request := sumRequest(nil, floats(10, 20))
	request.RawInputContents = request.RawInputContents[1:]
	request.Inputs[0].Shape = []int64{1, 2}
	request.Inputs[0].Parameters = map[string]*oip.InferParameter{"shared_memory_region": text("io"), "shared_memory_byte_size": whole(8)}
	request.Outputs = []*oip.ModelInferRequest_InferRequestedOutputTensor{{Name: "big"}, {Name: "sum",
		Parameters: map[string]*oip.InferParameter{"shared_memory_region": text("io"), "shared_memory_offset": whole(8), "shared_memory_byte_size": whole(8)}}}
	answer, err := c.ModelInfer(ctx, request)
	if err != nil || len(answer.RawOutputContents) != 2 || len(answer.RawOutputContents[0]) != 2 || len(answer.RawOutputContents[1]) != 0 {
		t.Fatalf("%v %v", answer, err)
	}
	if got := content(t, key)[8:]; string(got) != string(floats(11, 22)) {
		t.Errorf("the region has %x", got)
	}

	if _, err := c.SystemSharedMemoryUnregister(ctx, &oip.SystemSharedMemoryUnregisterRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := c.CudaSharedMemoryRegister(ctx, &oip.CudaSharedMemoryRegisterRequest{Name: "x"}); status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "CUDA shared memory is not supported") {
		t.Error(err)
	}
	if _, err := c.CudaSharedMemoryUnregister(ctx, &oip.CudaSharedMemoryUnregisterRequest{}); err != nil {
		t.Error(err)
	}
}

// TestRegisterRefuses: each error of a region has its own text.
func TestRegisterRefuses(t *testing.T) {
	server, _ := rest(t, Options{ClientMemory: true})
	key := object(t, make([]byte, 64))
	for name, c := range map[string]struct {
		key          string
		offset, size int64
		want         string
	}{
		"no object": {"/downbeat-test-is-not-there", 0, 8, "there is no such object"},
		"path":      {"/../etc/passwd", 0, 8, "must be the name of a shared memory object"},
		"no key":    {"", 0, 8, "must be the name of a shared memory object"},
		"too large": {key, 0, 65, "the object \\\"" + key + "\\\" has 64 bytes"},
		"beyond":    {key, 60, 8, "has 64 bytes"},
		"no bytes":  {key, 0, 0, "must be at least 0 and 1"},
		"negative":  {key, -1, 8, "must not be negative"},
		"overflow":  {key, math.MaxInt64, math.MaxInt64, "add up to at most"},
	} {
		if code, text := register(t, server.URL, "r", c.key, c.offset, c.size); code != http.StatusBadRequest || !strings.Contains(text, c.want) {
			t.Errorf("%s: %d %s, want %s", name, code, text, c.want)
		}
	}

	if os.Geteuid() == 0 { // only root can create an object of another user
		other := object(t, make([]byte, 64))
		if err := os.Chown(filepath.Join(regionDir, other), 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if code, text := register(t, server.URL, "other", other, 0, 8); code != http.StatusBadRequest || !strings.Contains(text, "belongs to another user") {
			t.Errorf("another user's: %d %s", code, text)
		}
	}
	link := filepath.Join(regionDir, "downbeat-test-link")
	if err := os.Symlink("/etc/hostname", link); err == nil {
		defer os.Remove(link)
		if code, text := register(t, server.URL, "link", "/downbeat-test-link", 0, 1); code != http.StatusBadRequest || !strings.Contains(text, "it is no plain object") {
			t.Errorf("a link: %d %s", code, text)
		}
	}

	if code, text := register(t, server.URL, "r", key, 0, 64); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	if code, text := register(t, server.URL, "r", key, 0, 64); code != http.StatusBadRequest || !strings.Contains(text, "shared memory region 'r' already in manager") {
		t.Errorf("twice: %d %s", code, text)
	}
}

// tensorIn returns a REST request for sum whose first input has the given parameters, and more fields.
func tensorIn(parameters, more string) string {
	return `{"inputs":[{"name":"a","shape":[1,2],"datatype":"FP32","parameters":{` + parameters + `}` + more + `},{"name":"b","shape":[1,2],"datatype":"FP32","data":[1,2]}]}`
}

// outputIn is sumBody with parameters of an output.
func outputIn(parameters string) string {
	return sumBody[:len(sumBody)-1] + `,"outputs":[{"name":"sum","parameters":{` + parameters + `}}]}`
}

// TestSharedMemoryRefuses: each error of a tensor in a region.
func TestSharedMemoryRefuses(t *testing.T) {
	server, _ := rest(t, Options{ClientMemory: true})
	key := object(t, make([]byte, 64))
	register(t, server.URL, "r", key, 0, 64)
	for name, c := range map[string]struct{ body, want string }{
		"no size":         {tensorIn(`"shared_memory_region":"r"`, ""), "one is missing"},
		"no region":       {tensorIn(`"shared_memory_byte_size":8`, ""), "one is missing"},
		"data besides":    {tensorIn(`"shared_memory_region":"r","shared_memory_byte_size":8`, `,"data":[1,2]`), "has data besides shared_memory_region"},
		"another size":    {tensorIn(`"shared_memory_region":"r","shared_memory_byte_size":12`, ""), "12 bytes of data: shape [1 2] of FP32 takes 8"},
		"beyond":          {tensorIn(`"shared_memory_region":"r","shared_memory_byte_size":8,"shared_memory_offset":57`, ""), `region \"r\" has 64 bytes`},
		"overflow":        {tensorIn(`"shared_memory_region":"r","shared_memory_byte_size":8,"shared_memory_offset":9223372036854775807`, ""), `region \"r\" has 64 bytes`},
		"negative":        {tensorIn(`"shared_memory_region":"r","shared_memory_byte_size":8,"shared_memory_offset":-1`, ""), "must be 0 or more"},
		"unknown":         {tensorIn(`"shared_memory_region":"x","shared_memory_byte_size":8`, ""), "Unable to find shared memory region: 'x'"},
		"misspelt":        {tensorIn(`"shared_memory_regio":8`, ""), "no such parameter"},
		"output small":    {outputIn(`"shared_memory_region":"r","shared_memory_byte_size":4`), "shared memory size specified with the request for output 'sum' (4 bytes) should be at least 8 bytes"},
		"output no size":  {outputIn(`"shared_memory_region":"r"`), "one is missing"},
		"output unknown":  {outputIn(`"shared_memory_region":"x","shared_memory_byte_size":8`), "Unable to find shared memory region: 'x'"},
		"classes too big": {outputIn(`"shared_memory_region":"r","shared_memory_byte_size":8,"classification":1`), "should be at least 15 bytes"},
	} {
		if code, _, text := call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(c.body)); code != http.StatusBadRequest || !strings.Contains(string(text), c.want) {
			t.Errorf("%s: %d %s, want %s", name, code, text, c.want)
		}
	}

}

// TestVanishingClients: whatever a client does to its registered object, at most its own calls fail.
func TestVanishingClients(t *testing.T) {
	server, _ := rest(t, Options{ClientMemory: true})
	key := object(t, make([]byte, 64))
	register(t, server.URL, "r", key, 0, 64)

	// A client that truncates its object gets an error, and the gateway survives.
	if err := os.Truncate(filepath.Join(regionDir, key), 4); err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{tensorIn(`"shared_memory_region":"r","shared_memory_byte_size":8`, ""), outputIn(`"shared_memory_region":"r","shared_memory_byte_size":8`)} {
		if code, _, text := call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(body)); code != http.StatusBadRequest || !strings.Contains(string(text), "has shrunk") {
			t.Errorf("truncated: %d %s", code, text)
		}
	}

	// Missing whole pages are also an error, and do not end the gateway.
	const page = 1 << 16
	pages := object(t, make([]byte, 2*page))
	register(t, server.URL, "pages", pages, 8, 2*page-8)
	if err := os.Truncate(filepath.Join(regionDir, pages), 4); err != nil {
		t.Fatal(err)
	}
	at := fmt.Sprintf(`"shared_memory_region":"pages","shared_memory_byte_size":8,"shared_memory_offset":%d`, page)
	for _, body := range []string{tensorIn(at, ""), outputIn(at)} {
		if code, _, text := call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(body)); code != http.StatusBadRequest || !strings.Contains(string(text), "has shrunk") {
			t.Errorf("pages gone: %d %s", code, text)
		}
	}

	// The region of a client that unlinks its object, or dies, stays until it is unregistered: only memory is lost.
	gone := object(t, floats(5, 6))
	register(t, server.URL, "gone", gone, 0, 8)
	if err := os.Remove(filepath.Join(regionDir, gone)); err != nil {
		t.Fatal(err)
	}
	if code, _, text := call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(tensorIn(`"shared_memory_region":"gone","shared_memory_byte_size":8`, ""))); code != http.StatusOK || !strings.Contains(string(text), `"data":[6,8]`) {
		t.Errorf("unlinked: %d %s", code, text)
	}
}

// TestSharedMemoryOff: a deployment that does not allow shared memory says so, and opens nothing.
func TestSharedMemoryOff(t *testing.T) {
	server, _ := rest(t, Options{})
	if code, text := register(t, server.URL, "r", object(t, make([]byte, 8)), 0, 8); code != http.StatusBadRequest || !strings.Contains(text, "client_shm") {
		t.Errorf("%d %s", code, text)
	}
	if code, _, text := call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(inRegion("r", "", 1, 0, 0))); code != http.StatusBadRequest || !strings.Contains(string(text), "client_shm") {
		t.Errorf("%d %s", code, text)
	}
	if _, _, text := call(t, "GET", server.URL+"/v2", nil); strings.Contains(string(text), "shared_memory") {
		t.Errorf("extensions: %s", text)
	}
}

// TestUnregisterInUse: regions are registered and unregistered during calls that use them; each call is answered, and
// no file stays open.
func TestUnregisterInUse(t *testing.T) {
	server, _ := rest(t, Options{ClientMemory: true})
	key := object(t, floats(1, 2))
	open := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		n := 0
		for _, f := range all {
			if to, _ := os.Readlink("/proc/self/fd/" + f.Name()); to == regionDir+key {
				n++
			}
		}
		return n
	}

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
	for range 50 {
		register(t, server.URL, "r", key, 0, 8)
		call(t, "POST", server.URL+"/v2/systemsharedmemory/unregister", nil)
	}
	wait.Wait()
	if n := open(); n != 0 {
		t.Errorf("the object is still open %d times", n)
	}
}
