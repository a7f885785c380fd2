package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestClockStartsWithTheFirstByte: the clock of a REST call starts with its first byte, so a body that takes longer
// than the call's timeout leaves no time for the model. The next call on the connection has its own clock, which
// excludes the pause before it.
func TestClockStartsWithTheFirstByte(t *testing.T) {
	c, _ := client(t, compute)
	g := New(c, Options{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- g.Serve(ctx, ln, nil) }()
	defer func() { cancel(); <-ended }()
	s, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	answers := bufio.NewReader(s)

	const pause = 150 * time.Millisecond
	send := func(timeout time.Duration, pause time.Duration) int {
		t.Helper()
		body := fmt.Sprintf(`{"parameters":{"timeout":%d},"inputs":[{"name":"in","datatype":"BYTES","shape":[1,1],"data":["x"]}]}`, timeout.Microseconds())
		fmt.Fprintf(s, "POST /v2/models/text/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body[:10])
		time.Sleep(pause)
		fmt.Fprint(s, body[10:])
		r, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Fatal(err)
		}
		return r.StatusCode
	}
	if status := send(time.Minute, pause); status != http.StatusOK {
		t.Fatalf("a call with a minute ends with %d", status)
	}
	g.metrics.metricsOf("text", "3").mu.Lock()
	took := time.Duration(g.metrics.metricsOf("text", "3").sums.successNS)
	g.metrics.metricsOf("text", "3").mu.Unlock()
	if took < pause {
		t.Errorf("a call whose body took %v took %v, says the gateway", pause, took)
	}
	if status := send(pause/2, pause); status != http.StatusGatewayTimeout {
		t.Errorf("a call that was longer on its way than its timeout ends with %d, want 504", status)
	}

	// With the clock of the previous call, this call would have been too late each time.
	for end := time.Now().Add(time.Minute); ; {
		time.Sleep(2 * pause)
		if send(2*pause, 0) == http.StatusOK {
			return
		}
		if time.Now().After(end) {
			t.Fatal("a call has the clock of the call before")
		}
	}
}
