//go:build linux

package main

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"downbeat.dev/cuda/cudatest"
)

// TestServeOpensDeviceMemory: `serve` opens a client's device memory with client_shm where a driver is, and ends well with a region
// that nobody has unregistered.
func TestServeOpensDeviceMemory(t *testing.T) {
	owner := cudatest.StartOwner(t, make([]byte, 64))
	address := freeAddress(t)
	p := startProcess(t, "", "serve", "-http", address, "-grpc", freeAddress(t), "-metrics", "", "-client-shm", "-models", repository(t), "-emulate", "1")
	waitFor(t, func() bool {
		r, err := http.Get("http://" + address + "/v2/health/ready")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})

	r, err := http.Post("http://"+address+"/v2/cudasharedmemory/region/r/register", "application/json",
		strings.NewReader(fmt.Sprintf(`{"raw_handle":{"b64":%q},"device_id":0,"byte_size":64}`, base64.StdEncoding.EncodeToString(owner.Handle[:]))))
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(r.Body)
	r.Body.Close()
	if r.StatusCode != http.StatusOK {
		t.Errorf("%s %s", r.Status, text)
	}

	http.DefaultClient.CloseIdleConnections()
	p.end(os.Interrupt)
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("serve ended with %d:\n%s", code, p.log.String())
	}
}
