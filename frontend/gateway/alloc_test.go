//go:build !race

package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/internal/echo"
	"downbeat.dev/rdma"
)

// flat is a model of one tensor, whose answers are the four bytes of echo's instant scheduler.
var flat = model.Info{ID: 1, Name: "flat", Version: "1", SLO: int64(10 * time.Minute), BatchMax: 8, Ready: true, Platform: "test",
	Inputs: []model.Tensor{tensor("x", "UINT8", flatBytes)}, Outputs: []model.Tensor{tensor("y", "UINT8", 4)}}

const flatBytes = 4096

// dialFlat returns a client of a system that serves flat without allocating.
func dialFlat(tb testing.TB) *frontend.Client {
	node, err := rdma.Open(rdma.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	addr, forget := echo.ListenInstant(node, flat)
	c, err := frontend.Dial(context.Background(), frontend.Options{Scheduler: addr})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close(); node.Close(); forget() })
	return c
}

// bareFlat is the least that a net/http handler can do to serve flat: it ignores the text in front of the tensor, and
// counts nothing.
func bareFlat(c *frontend.Client) http.HandlerFunc {
	head := []byte(`{"model_name":"flat","model_version":"1","outputs":[{"name":"y","datatype":"UINT8","shape":[1,4],"parameters":{"binary_data_size":4}}]}`)
	length := []string{strconv.Itoa(len(head))}
	return func(w http.ResponseWriter, r *http.Request) {
		in, err := c.Buffer(flatBytes)
		if err != nil {
			panic(err)
		}
		defer in.Free()
		if _, err := io.CopyN(io.Discard, r.Body, r.ContentLength-flatBytes); err != nil {
			panic(err)
		}
		if _, err := io.ReadFull(r.Body, in.Bytes()); err != nil {
			panic(err)
		}
		result, err := c.Infer(r.Context(), "flat", in)
		if err != nil {
			panic(err)
		}
		defer result.Release()

		w.Header()["Content-Type"], w.Header()[headerLength] = binaryContent, length
		_, _ = w.Write(head)
		_, _ = w.Write(result.Data)
	}
}

// serveFlat serves flat until the test ends, with a gateway or with bareFlat, and returns a function that calls it
// over one connection. The caller's side allocates nothing.
func serveFlat(tb testing.TB, bare bool) (ask func()) {
	c := dialFlat(tb)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}

	ended := make(chan error, 1)
	if bare {
		s := &http.Server{Handler: bareFlat(c)}
		go func() { ended <- ignoreClosed(s.Serve(ln)) }()
		tb.Cleanup(func() { s.Close(); <-ended })
	} else {
		ctx, cancel := context.WithCancel(context.Background())
		go func() { ended <- New(c, Options{}).Serve(ctx, ln, nil) }()
		tb.Cleanup(func() { cancel(); <-ended })
	}

	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	return askFlat(tb, conn)
}

// askFlat sends a call of flat and reads its answer.
func askFlat(tb testing.TB, conn net.Conn) func() {
	head := fmt.Sprintf(`{"inputs":[{"name":"x","shape":[1,%[1]d],"datatype":"UINT8","parameters":{"binary_data_size":%[1]d}}],"parameters":{"binary_data_output":true}}`, flatBytes)
	text := fmt.Appendf(nil, "POST /v2/models/flat/infer HTTP/1.1\r\nHost: localhost:8000\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: %d\r\n%s: %d\r\n\r\n%s%s",
		len(head)+flatBytes, headerLength, len(head), head, make([]byte, flatBytes))
	answers := bufio.NewReader(conn)

	return func() {
		if _, err := conn.Write(text); err != nil {
			tb.Fatal(err)
		}
		size := 0
		for first := true; ; first = false {
			line, err := answers.ReadSlice('\n')
			if err != nil || first && !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
				tb.Fatalf("%s %v", line, err)
			}
			if len(line) == len("\r\n") {
				break
			}
			if digits, found := bytes.CutPrefix(line, []byte("Content-Length: ")); found {
				for _, d := range bytes.TrimSpace(digits) {
					size = 10*size + int(d-'0')
				}
			}
		}
		if n, err := answers.Discard(size); err != nil || n < 100 {
			tb.Fatalf("an answer of %d bytes: %v", n, err)
		}
	}
}

// TestRESTAllocatesWhatNetHTTPDoes: checks, JSON, counts and limits of a REST call allocate nothing. Beyond the least
// handler, the gateway allocates only the header that says where its answer's tensors begin.
func TestRESTAllocatesWhatNetHTTPDoes(t *testing.T) {
	const calls, header = 2000, 2
	gateway, bare := testing.AllocsPerRun(calls, serveFlat(t, false)), testing.AllocsPerRun(calls, serveFlat(t, true))
	t.Logf("allocations of a call: %v by the gateway, %v by a bare handler", gateway, bare)
	if gateway > bare+header {
		t.Errorf("a call takes %v allocations, a bare handler %v: want %d more at most", gateway, bare, header)
	}
}

// BenchmarkREST makes one call after another over one connection; cpu-ns is processor time, including the caller's.
func BenchmarkREST(b *testing.B) {
	for name, bare := range map[string]bool{"gateway": false, "bare": true} {
		b.Run(name, func(b *testing.B) {
			ask := serveFlat(b, bare)
			b.ReportAllocs()
			began := usedCPU()
			for b.Loop() {
				ask()
			}
			b.ReportMetric(float64(usedCPU()-began)/float64(b.N), "cpu-ns/op")
		})
	}
}

func usedCPU() int64 {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // cannot fail for the own process
	return u.Utime.Nano() + u.Stime.Nano()
}
