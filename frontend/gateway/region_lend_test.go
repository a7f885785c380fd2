package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/internal/echo"
)

// wideBytes is the size of a row of the model wide, which answers with its last byte.
const wideBytes = 3 * lendMin

// wide serves one model of one large input; seen runs for each request after its input was read.
func wide(t *testing.T, seen func()) (*httptest.Server, *frontend.Client) {
	t.Helper()
	return wideWith(t, seen, Options{ClientMemory: true})
}

func wideWith(t *testing.T, seen func(), o Options) (*httptest.Server, *frontend.Client) {
	t.Helper()
	s, err := echo.New([]model.Info{{ID: 1, Name: "wide", Version: "1", SLO: int64(time.Minute), BatchMax: 8, Ready: true, Platform: "test",
		Inputs: []model.Tensor{tensor("x", "UINT8", wideBytes)}, Outputs: []model.Tensor{tensor("y", "UINT8", 1)}}},
		func(_ wire.Submit, in []byte) ([]byte, model.Reason) {
			seen()
			return in[len(in)-1:], model.ReasonNone
		})
	if err != nil {
		t.Fatal(err)
	}
	c, err := frontend.Dial(context.Background(), frontend.Options{Scheduler: s.Addr})
	if err != nil {
		t.Fatal(err)
	}
	g := New(c, o)
	server := httptest.NewServer(g.rest.Handler)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		server.Close()
		g.grpc.Stop()
		if err := errors.Join(c.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	})
	return server, c
}

func askWide(t *testing.T, server *httptest.Server, offset, rows int) (int, string) {
	t.Helper()
	body := fmt.Sprintf(`{"inputs":[{"name":"x","shape":[%d,%d],"datatype":"UINT8","parameters":{"shared_memory_region":"r","shared_memory_offset":%d,"shared_memory_byte_size":%d}}]}`, rows, wideBytes, offset, rows*wideBytes)
	code, _, text := call(t, "POST", server.URL+"/v2/models/wide/infer", strings.NewReader(body))
	return code, string(text)
}

// TestRegionIsReadWhereItLies: a backend in the process reads rows from the client's pages, so registered memory has
// no room for them; the next request sees what the client writes into its region.
func TestRegionIsReadWhereItLies(t *testing.T) {
	server, c := wide(t, func() {})
	pages := bytes.Repeat([]byte{5}, 100+2*wideBytes)
	pages[99+2*wideBytes] = 6
	key := object(t, pages)
	if code, text := register(t, server.URL, "r", key, 0, int64(len(pages))); code != http.StatusOK {
		t.Fatal(text)
	}
	if code, text := askWide(t, server, 100, 2); code != http.StatusOK || !strings.Contains(text, `"data":[5,6]`) {
		t.Fatalf("%d %s", code, text)
	}

	pages[99+wideBytes] = 8
	if err := os.WriteFile(filepath.Join(regionDir, key), pages, 0); err != nil {
		t.Fatal(err)
	}
	if code, text := askWide(t, server, 100, 1); code != http.StatusOK || !strings.Contains(text, `"data":[8]`) {
		t.Errorf("after the client wrote: %d %s", code, text)
	}

	// A segment has slots of one size, so a copy of a row would have needed a second segment.
	lent := c.Stats().Data
	b, err := c.Buffer(wideBytes)
	if err != nil {
		t.Fatal(err)
	}
	b.Free()
	if after := c.Stats().Data; lent.BytesRegistered == after.BytesRegistered || lent.BuffersLive != 0 {
		t.Errorf("registered memory had room for rows before a buffer was made: %+v, then %+v", lent, after)
	}
}

// TestLentPagesVanish: a client that removes its pages before they are read, or before the answer, gets an error; the
// gateway survives.
func TestLentPagesVanish(t *testing.T) {
	var key atomic.Pointer[string]
	vanish := func() {
		if k := key.Load(); k != nil {
			if err := os.Truncate(filepath.Join(regionDir, *k), 4); err != nil {
				t.Error(err)
			}
		}
	}
	server, _ := wide(t, vanish)
	whole := bytes.Repeat([]byte{5}, wideBytes)
	for _, when := range []string{"before", "meanwhile"} {
		k := object(t, whole)
		register(t, server.URL, "r", k, 0, wideBytes)
		key.Store(&k)
		if when == "before" {
			vanish()
		}
		if code, text := askWide(t, server, 0, 1); code != http.StatusBadRequest || !strings.Contains(text, "has shrunk") {
			t.Errorf("%s: %d %s", when, code, text)
		}
		call(t, "POST", server.URL+"/v2/systemsharedmemory/unregister", nil)
	}

	key.Store(nil)
	register(t, server.URL, "r", object(t, whole), 0, wideBytes)
	if code, text := askWide(t, server, 0, 1); code != http.StatusOK || !strings.Contains(text, `"data":[5]`) {
		t.Errorf("another object: %d %s", code, text)
	}
}
