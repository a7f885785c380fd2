//go:build linux

package downbeat

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"downbeat.dev/backend"
	"downbeat.dev/core/control"
	"downbeat.dev/core/model"
	"downbeat.dev/deploy"
	"downbeat.dev/deploy/loglimit"
	"downbeat.dev/frontend"
	"downbeat.dev/internal/logtest"
)

// echoModel is an emulated model that takes little time.
const echoModel = `name: "echo"
platform: "emulated"
max_batch_size: 16
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
parameters { key: "alpha_ms" value { string_value: "0.1" } }
parameters { key: "beta_ms" value { string_value: "0.5" } }
parameters { key: "slo_ms" value { string_value: "5000" } }
`

// emulated is a system on free ports with two emulated GPUs.
func emulated(t *testing.T, roles Role) Config {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "models")
	addModel(t, dir, "echo", echoModel)
	c := Default()
	c.Roles, c.Models, c.Emulate, c.HTTP, c.GRPC = roles, dir, 2, "127.0.0.1:0", "127.0.0.1:0"
	return c
}

// addModel writes a model's configuration to a repository.
func addModel(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, c Config) *System {
	t.Helper()
	s, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// waitFor waits until what happens by itself has happened.
func waitFor(t *testing.T, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not happen within a minute")
		}
	}
}

// TestSystemInOneProcess: what doc.go shows first. Afterwards Go has its processors back.
func TestSystemInOneProcess(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	s, err := Start(t.Context(), emulated(t, Default().Roles))
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Client().InferCopy(t.Context(), "echo", make([]byte, 16))
	if err != nil || len(r.Data) != 16 {
		t.Errorf("%d bytes, %v", len(r.Data), err)
	}
	if s.Gateway() != nil || s.Config().Listen != "" || s.PageURL() != "" {
		t.Error("parts run that nobody asked for")
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if after := runtime.GOMAXPROCS(0); after != before {
		t.Errorf("GOMAXPROCS was %d and is %d", before, after)
	}
}

// TestSystemsOfOneRoleEach: the same call starts the parts of a cluster, which find each other by address.
func TestSystemsOfOneRoleEach(t *testing.T) {
	c := emulated(t, Scheduler)
	c.Listen = "127.0.0.1:0"
	c.Scheduler = start(t, c).Config().Listen

	for _, role := range []Role{Backend, Gateway} {
		c.Roles = role
		s := start(t, c)
		if role != Gateway {
			continue
		}

		waitFor(t, func() bool { m := s.Client().Model("echo", ""); return m != nil && m.Ready })
		answer, err := http.Post("http://"+s.Config().HTTP+"/v2/models/echo/infer", "application/json",
			strings.NewReader(`{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[0,0,0,0]}]}`))
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			t.Errorf("status %d", answer.StatusCode)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestStartSaysWhatIsWrong, and leaves nothing running.
func TestStartSaysWhatIsWrong(t *testing.T) {
	taken := start(t, emulated(t, Scheduler|Gateway))
	for want, change := range map[string]func(*Config){
		"roles: 0 is not allowed": func(c *Config) { c.Roles = 0 },
		"provider":                func(c *Config) { c.Provider = "pigeon" },
		"in use":                  func(c *Config) { c.Roles, c.HTTP = Scheduler|Gateway, taken.Config().HTTP },
		"set token_file":          func(c *Config) { c.Metrics = "0.0.0.0:0" },
		"want port 0":             func(c *Config) { c.Roles, c.Data = Scheduler|Backend|Gateway, "127.0.0.1:7071" },
	} {
		c := emulated(t, Scheduler)
		change(&c)
		if s, err := Start(t.Context(), c); err == nil || s != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error about %q", err, want)
		}
	}
}

// TestAWrongGatewayLoadsNoModels: a taken port or a file that is not there is said before the backend loads its models,
// which takes minutes for large ones. What was opened until then is closed.
func TestAWrongGatewayLoadsNoModels(t *testing.T) {
	taken := start(t, emulated(t, Scheduler|Gateway)).Config()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	for name, change := range map[string]func(*Config){
		"in use":             func(c *Config) { c.HTTP = taken.HTTP },
		"address already":    func(c *Config) { c.HTTP, c.GRPC = free.Addr().String(), taken.GRPC },
		"client_tokens_file": func(c *Config) { c.Protocol.ClientTokensFile = "/nonexistent" },
		"restricted":         func(c *Config) { c.Protocol.RestrictedFile = "/nonexistent" },
	} {
		c := emulated(t, Scheduler|Backend|Gateway)
		change(&c)
		c.TuneBackend = func(*backend.Options) { t.Errorf("%s: the backend is started", name) }
		if s, err := Start(t.Context(), c); err == nil || s != nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want an error about %q", err, name)
		}
	}

	c := emulated(t, Scheduler|Backend|Gateway)
	c.HTTP, c.Models = free.Addr().String(), filepath.Join(t.TempDir(), "none")
	c.Protocol.StrictModels = true
	if s, err := Start(t.Context(), c); err == nil {
		t.Errorf("started without models: %v", s.Close())
	}
	c = emulated(t, Scheduler|Gateway)
	c.HTTP = free.Addr().String()
	start(t, c)
}

// TestAFloorThatNoVariantReachesIsNamed: clients of the family hear of the floor and the best variant, not that no such
// model exists.
func TestAFloorThatNoVariantReachesIsNamed(t *testing.T) {
	c := emulated(t, Scheduler|Backend|Gateway)
	c.Accuracy.Floors = "sounds=0.99"
	addModel(t, c.Models, "echo", echoModel+`parameters { key: "family" value { string_value: "sounds" } }
parameters { key: "accuracy" value { string_value: "0.9" } }
`)
	s := start(t, c)
	waitFor(t, func() bool { return s.Client().Model("sounds", "") != nil })

	body := `{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}`
	answer, err := http.Post(s.PageURL()+"v2/models/sounds/infer", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), "accuracy floor 0.99: the best variant has 0.9") {
		t.Errorf("%s %s, %v: want 503 with the floor and the best variant", answer.Status, text, err)
	}
	if _, err := s.Client().InferCopy(t.Context(), "sounds", make([]byte, 16)); !isBelowFloor(err) {
		t.Errorf("the library says %v", err)
	}
	if _, err := s.Client().NewInput("sounds"); !isBelowFloor(err) {
		t.Errorf("the library says of the input %v", err)
	}
	if _, err := s.Client().InferCopy(t.Context(), "echo", make([]byte, 16)); err != nil {
		t.Errorf("the model by itself: %v", err)
	}
}

// isBelowFloor reports whether an error is the outcome that names a floor and the best variant.
func isBelowFloor(err error) bool {
	var o *frontend.OutcomeError
	return errors.As(err, &o) && o.Reason == model.FloorTooHigh && errors.Is(err, frontend.ErrRejected) &&
		strings.Contains(err.Error(), "accuracy floor 0.99: the best variant has 0.9")
}

// TestFreePorts: a gateway that may dodges a default port that another has; it never leaves one that was named.
func TestFreePorts(t *testing.T) {
	ln, err := net.Listen("tcp", Default().HTTP)
	if err != nil {
		t.Skip(err) // somebody else has it, and may leave it any time
	}
	defer ln.Close()
	c := emulated(t, Scheduler|Gateway)
	c.HTTP, c.FreePorts = Default().HTTP, true
	if got := start(t, c).Config().HTTP; got == Default().HTTP {
		t.Errorf("listens on %s, which is taken", got)
	}
}

// TestMetricsOfABackend: alive and not ready while it looks for its scheduler, ready with it, and not without.
func TestMetricsOfABackend(t *testing.T) {
	ln, err := control.Listen("127.0.0.2:0") // where hardly anybody else of this host binds until the scheduler comes
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()

	var log logtest.Buffer
	c := emulated(t, Backend)
	c.Scheduler, c.Patient, c.Metrics, c.Log = ln.Addr().String(), true, "127.0.0.1:0", &log
	b := start(t, c)
	status := func(path string) int {
		answer, err := http.Get("http://" + b.Config().Metrics + path)
		if err != nil {
			return 0
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	if live, ready := status("/v2/health/live"), status("/v2/health/ready"); live != 200 || ready != 503 {
		t.Errorf("without a scheduler: live %d, ready %d", live, ready)
	}
	waitFor(t, func() bool { return strings.Contains(log.String(), "waiting for the scheduler") })

	c = emulated(t, Scheduler)
	c.Listen, c.Log = ln.Addr().String(), io.Discard
	s, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return status("/v2/health/ready") == 200 })
	if code := status("/metrics"); code != 200 {
		t.Errorf("metrics: %d", code)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	waitFor(t, func() bool { return status("/v2/health/ready") == 503 })
	http.DefaultClient.CloseIdleConnections()
}

// TestWarnsOfWhatItOpens: of a configuration that all parts share, a part names the listeners of its own.
func TestWarnsOfWhatItOpens(t *testing.T) {
	var log logtest.Buffer
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := emulated(t, Backend)
	c.Listen, c.HTTP, c.Data, c.TokenFile, c.LogLevel, c.Log = "0.0.0.0:7070", "0.0.0.0:8000", "0.0.0.0:0", secret, "warn", &log
	s, err := newSystem(c)
	if err != nil {
		t.Fatal(err)
	}
	s.warnExposed()
	if !strings.Contains(log.String(), "listeners=data\n") {
		t.Errorf("a backend warns: %q", log.String())
	}
	said := log.String()
	s.config.TLS = t.TempDir()
	s.warnExposed()
	if log.String() != said {
		t.Errorf("with tls: %q", log.String())
	}
}

// TestLogsByRoom: rooms of one process have levels of their own, in its configuration, and lines say whose they are.
func TestLogsByRoom(t *testing.T) {
	var log logtest.Buffer
	c := emulated(t, Scheduler|Backend|Client|Gateway)
	c.Listen, c.LogLevel, c.LogRooms, c.Log = "", "info", "rdma=error,backend=debug", &log
	s := start(t, c)
	s.logOf("rdma").Warn("unheard")
	s.logOf("backend").Debug("heard")
	text := log.String()
	if strings.Contains(text, "unheard") || !strings.Contains(text, "level=DEBUG msg=heard room=backend") || !strings.Contains(text, "room=frontend") || strings.Contains(text, "room=rdma") {
		t.Errorf("log: %s", text)
	}

	// The gateway's clients change the same levels.
	r, err := http.Post("http://"+s.Config().HTTP+"/v2/logging", "application/json", strings.NewReader(`{"log_rooms":"rdma=warn"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	s.logOf("rdma").Warn("now heard")
	if !strings.Contains(log.String(), `msg="now heard" room=rdma`) {
		t.Errorf("after /v2/logging (%s): %s", r.Status, log.String())
	}
	http.DefaultClient.CloseIdleConnections()

	bad := emulated(t, Scheduler)
	bad.LogRooms = "gpu=debug"
	if _, err := newSystem(bad); err == nil || !strings.Contains(err.Error(), "log_rooms") {
		t.Errorf("a room that is not there: %v", err)
	}
}

// fullListener is a listener of a process without a descriptor left; then it is closed.
type fullListener struct {
	net.Listener
	left int
}

func (l *fullListener) Accept() (net.Conn, error) {
	if l.left == 0 {
		return nil, net.ErrClosed
	}
	l.left--
	return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
}

// TestGatewayOutOfDescriptorsSaysSo: in a few lines, though it tries again all the time.
func TestGatewayOutOfDescriptorsSaysSo(t *testing.T) {
	var log logtest.Buffer
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	l := loggedListener{&fullListener{ln, 1000}, slog.New(loglimit.New(slog.NewTextHandler(&log, nil)))}
	for err = io.EOF; err != net.ErrClosed; {
		_, err = l.Accept()
	}
	if n := strings.Count(log.String(), "too many open files"); n == 0 || n > 10 {
		t.Errorf("said %d times: %s", n, log.String())
	}
}

// TestNoFieldIsLeftOutOfTheLog: every field that is not honoured, and every model that cannot be served, has its line at the start, however many there are.
func TestNoFieldIsLeftOutOfTheLog(t *testing.T) {
	const models, fields = 7, 8
	c := emulated(t, Default().Roles)
	for i := range models {
		addModel(t, c.Models, fmt.Sprint("broken-", i), "max_batch_size: 0.5")
		addModel(t, c.Models, fmt.Sprint("served-", i), strings.Replace(echoModel, `name: "echo"`, "", 1)+`
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 9 preserve_ordering: true }
response_cache { enable: true } instance_group [ { name: "g" count: 3 } ] metric_tags { key: "a" value: "b" } runtime: "r"`)
	}
	var log logtest.Buffer
	c.Log = &log
	start(t, c)

	for i := range models {
		served, broken := fmt.Sprintf("model=served-%d ", i), fmt.Sprintf("model=broken-%d ", i)
		said := 0
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, served) && strings.Contains(line, "read but not honoured") {
				said++
			}
		}
		if said != fields {
			t.Errorf("%s%d of its %d fields have a warning", served, said, fields)
		}
		if !strings.Contains(log.String(), broken) {
			t.Errorf("%shas no line", broken)
		}
	}
}

// TestLoadedFileIsInForce: a file's knobs are the configuration's.
func TestLoadedFileIsInForce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "downbeat.yaml")
	if err := os.WriteFile(path, []byte("models: elsewhere\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path)
	if err != nil || c.Models != "elsewhere" || c.Listen != deploy.Default().Listen || c.Roles != Default().Roles {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := Load(path + "s"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}
