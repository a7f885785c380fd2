package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"downbeat.dev/core/model"
)

// TestUnknownModelWithoutScheduler: without a scheduler the model may exist, so the client should retry; its name
// does not become a label.
func TestUnknownModelWithoutScheduler(t *testing.T) {
	server, s := rest(t, Options{})
	s.Lose()
	if code, h, text := call(t, "POST", server.URL+"/v2/models/new/infer", strings.NewReader("{}")); code != 503 || h.Get("Retry-After") == "" {
		t.Errorf("%d %v %s", code, h, text)
	}
	_, _, text := call(t, "GET", server.URL+"/metrics", nil)
	if !strings.Contains(string(text), `downbeat_inference_request_failure_total{model="",reason="no_scheduler",version=""} 1`) {
		t.Errorf("%s", text)
	}
}

// TestVersionsThatNobodyServesAreNotOffered: after an upgrade the old version is known, but not offered.
func TestVersionsThatNobodyServesAreNotOffered(t *testing.T) {
	server, s := rest(t, Options{})
	i := slices.IndexFunc(testModels, func(m model.Info) bool { return m.Name == "sum" })
	old := testModels[i]
	old.ID, old.Version, old.Ready = 99, "0", false
	s.Return([]model.Info{old})
	if _, _, text := call(t, "GET", server.URL+"/v2/models/sum", nil); !strings.Contains(string(text), `"versions":["1"]`) {
		t.Errorf("%s", text)
	}
	if _, _, text := call(t, "GET", server.URL+"/v2/models/idle", nil); !strings.Contains(string(text), `"versions":["1"]`) {
		t.Errorf("a model that nobody serves: %s", text)
	}
	if code, _, text := call(t, "GET", server.URL+"/v2/models/sum/versions/7", nil); code != 404 || !strings.Contains(string(text), "served: [1]") {
		t.Errorf("%d %s", code, text)
	}
}

// leaver serves one listener with a gateway, which ends when it is told to leave.
func leaver(t *testing.T, serve func(*Gateway, context.Context, net.Listener) error) (g *Gateway, at string, leave func(), ended chan error) {
	c, _ := client(t, compute)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	g, ended = New(c, Options{}), make(chan error, 1)
	go func() { ended <- serve(g, ctx, ln) }()
	return g, ln.Addr().String(), cancel, ended
}

// TestGatewayLeavesBeforeItCloses: a gateway that is told to end is not ready, but still answers, and closes each
// connection with an answer.
func TestGatewayLeavesBeforeItCloses(t *testing.T) {
	for try := 1; !leaves(t); try++ {
		if try == 10 {
			t.Fatal("each time it had closed before a call came")
		}
	}
}

// leaves makes a gateway leave; false: this host stalled for the whole time.
func leaves(t *testing.T) bool {
	g, at, leave, ended := leaver(t, func(g *Gateway, ctx context.Context, ln net.Listener) error { return g.Serve(ctx, ln, nil) })
	url := "http://" + at
	defer http.DefaultClient.CloseIdleConnections()
	if code, h, _ := call(t, "POST", url+"/v2/models/sum/infer", strings.NewReader(sumBody)); code != 200 {
		t.Fatalf("before: %d %v", code, h)
	}
	leave()
	until(t, g.leaving.Load)
	w, err := http.Post(url+"/v2/models/sum/infer", "application/json", strings.NewReader(sumBody))
	if err != nil && <-ended == nil {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	w.Body.Close()
	if w.StatusCode != 200 || !w.Close {
		t.Errorf("while leaving: %d, connection ends: %v", w.StatusCode, w.Close)
	}
	if g.isReady() {
		t.Error("ready while leaving")
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := http.Post(url+"/v2/models/sum/infer", "application/json", strings.NewReader(sumBody)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("asked after Serve has returned: %v, want that nobody listens", err)
	}
	return true
}

// TestMuteCallersDoNotDelayTheEnd: a caller that connects for gRPC and says nothing, or not enough, does not take the time
// that the process has to end. gRPC waits headerTimeout for it.
func TestMuteCallersDoNotDelayTheEnd(t *testing.T) {
	_, at, leave, ended := leaver(t, func(g *Gateway, ctx context.Context, ln net.Listener) error { return g.Serve(ctx, nil, ln) })

	for _, said := range []string{"", "PRI * HTTP/2.0\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"} {
		mute, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer mute.Close()
		if _, err := mute.Write([]byte(said)); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(leaveQuiet) // until they are accepted

	begin := time.Now()
	leave()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > headerTimeout/2 {
		t.Errorf("the gateway took %v to end, want %v at most", took, leaveMax+drain)
	}
}
