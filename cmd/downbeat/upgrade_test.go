//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"downbeat.dev/core/wire"
	"downbeat.dev/frontend"
)

// declaredVersion is how a commit's core/wire declares the protocol that it speaks.
var declaredVersion = regexp.MustCompile(`(?m)^\s*Version\s*=\s*(\d+)$`)

// findBefore returns the newest commit of this history that speaks the protocol before this one: the one before the commit
// that declared this one. A history may be written anew, so that no hash is noted here.
func findBefore(t *testing.T) string {
	t.Helper()
	git := func(args ...string) string {
		out, err := exec.Command("git", append([]string{"-C", "../.."}, args...)...).Output()
		if err != nil {
			t.Skipf("the history is not here: git %s: %v", strings.Join(args, " "), err)
		}
		return strings.TrimSpace(string(out))
	}

	const declares = "core/wire/messages.go"
	for commit := range strings.Lines(git("log", "--format=%H", "--", declares)) {
		commit = strings.TrimSpace(commit)
		before := git("rev-parse", "--verify", commit+"^") // a history that was cut off ends here
		found := declaredVersion.FindStringSubmatch(git("show", before+":"+declares))
		if found == nil {
			t.Fatalf("%s:%s declares no protocol version", before, declares)
		}
		if found[1] == strconv.Itoa(wire.Version-1) {
			return before
		}
	}
	t.Skipf("no commit of this history speaks protocol version %d", wire.Version-1)
	return ""
}

// buildBefore builds the version before from the repository's history.
func buildBefore(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds an earlier version")
	}
	versionBefore := findBefore(t)
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	if err := os.Mkdir(source, 0o755); err != nil {
		t.Fatal(err)
	}
	unpack := exec.Command("bash", "-o", "pipefail", "-c", "git -C ../.. archive "+versionBefore+" -- . ':!bench/results' | tar -x -C "+source)
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("unpack %s: %v %s", versionBefore, err, out)
	}
	binary := filepath.Join(dir, "before")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", binary, "./cmd/downbeat")
	build.Dir = source
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", versionBefore, err, out)
	}
	return binary
}

// webFlow calls gateways as a client behind a balancer does: one that is not ready gets no call.
type webFlow struct {
	served atomic.Int64
	failed atomic.Pointer[string]
}

func (f *webFlow) run(stop <-chan struct{}, gateways []string) {
	client := &http.Client{Timeout: 20 * time.Second}
	defer client.CloseIdleConnections()
	for turn := 0; ; turn++ {
		select {
		case <-stop:
			return
		case <-time.After(10 * time.Millisecond):
		}
		addr := gateways[turn%len(gateways)]
		ready, err := client.Get("http://" + addr + "/v2/health/ready")
		if err != nil {
			continue
		}
		ready.Body.Close()
		if ready.StatusCode == http.StatusOK {
			f.call(client, addr)
		}
	}
}

func (f *webFlow) call(client *http.Client, addr string) {
	body := `{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}],"parameters":{"timeout":15000000}}`
	r, err := client.Post("http://"+addr+"/v2/models/echo/infer", "application/json", strings.NewReader(body))
	if err != nil {
		text := err.Error()
		f.failed.CompareAndSwap(nil, &text)
		return
	}
	defer r.Body.Close()
	answer, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK || !bytes.Contains(answer, []byte(`"outputs"`)) {
		text := fmt.Sprintf("%d %s %v", r.StatusCode, answer, err)
		f.failed.CompareAndSwap(nil, &text)
		return
	}
	f.served.Add(1)
}

// deployment is two schedulers of which one leads, two backends and two gateways, each a process.
type deployment struct {
	t          *testing.T
	models     string
	election   string
	schedulers []string // addresses
	gateways   []string // likewise
	parts      map[string]*process
}

var deploymentParts = []string{"scheduler0", "scheduler1", "backend0", "backend1", "gateway0", "gateway1"}

// list is what parts are told of the schedulers.
func (d *deployment) list() string { return strings.Join(d.schedulers, ",") }

// start starts a part, of this version where binary is empty.
func (d *deployment) start(binary, part string) {
	d.t.Helper()
	var args []string
	switch kind, number := part[:len(part)-1], part[len(part)-1]-'0'; kind {
	case "scheduler":
		args = []string{"scheduler", "-listen", d.schedulers[number], "-scheduler", d.list(), "-election", d.election, "-metrics", ""}
	case "backend":
		args = []string{"backend", "-scheduler", d.list(), "-models", d.models, "-emulate", "1"}
	case "gateway":
		args = []string{"gateway", "-scheduler", d.list(), "-http", d.gateways[number], "-grpc", "127.0.0.1:0"}
	}
	d.parts[part] = startProcess(d.t, binary, args...)
}

// connected tells whether a part that was started is connected to the schedulers, and both backends are to each.
func (d *deployment) connected(part string) bool {
	said := func(p, what string) int { return strings.Count(d.parts[p].log.String(), what) }
	for _, s := range []string{"scheduler0", "scheduler1"} {
		if said(s, "backend connected")-said(s, "backend left") != 2 {
			return false
		}
	}
	return strings.HasPrefix(part, "scheduler") || said(part, "scheduler connected") > 0
}

// ready tells whether the library and both gateways can be asked.
func (d *deployment) ready(c *frontend.Client) bool {
	if m := c.Model("echo", ""); !c.Connected() || m == nil || !m.Ready {
		return false
	}
	for _, addr := range d.gateways {
		r, err := http.Get("http://" + addr + "/v2/health/ready")
		if err != nil {
			return false
		}
		r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return false
		}
	}
	return true
}

// TestRollingUpgrade replaces every part of a running deployment of the version before by this one, one
// after the other, the schedulers among them, of which one leads, and then takes all of it back: no request fails, over the library or over REST.
func TestRollingUpgrade(t *testing.T) {
	before := buildBefore(t)
	d := &deployment{t: t, models: repository(t), election: "file://" + filepath.Join(t.TempDir(), "leader"),
		schedulers: []string{freeAddress(t), freeAddress(t)}, gateways: []string{freeAddress(t), freeAddress(t)}, parts: map[string]*process{}}
	for _, part := range deploymentParts {
		d.start(before, part)
	}
	c := dialProcess(t, frontend.Options{Scheduler: d.list()})
	// Nobody upgrades a deployment that has just begun to start: its standby would know no backend yet.
	waitFor(t, func() bool { return d.connected("scheduler1") && d.ready(c) })
	f, web, stop := startFlow(c, 5*time.Millisecond, 20*time.Second), &webFlow{}, make(chan struct{})
	ended := make(chan struct{})
	go func() { web.run(stop, d.gateways); close(ended) }()

	for _, binary := range []string{"", before} { // there and back
		for _, part := range deploymentParts {
			d.parts[part].end(syscall.SIGTERM)
			d.start(binary, part)
			waitFor(t, func() bool { return d.connected(part) && d.ready(c) })
		}
	}
	close(stop)
	<-ended
	served, failed := f.end()
	if len(failed) > 0 || served < 200 {
		t.Errorf("library: %d served, %d failed, the first: %v", served, len(failed), failed[:min(1, len(failed))])
	}
	if text := web.failed.Load(); text != nil || web.served.Load() < 50 {
		t.Errorf("REST: %d served", web.served.Load())
		if text != nil {
			t.Errorf("REST: the first that failed: %s", *text)
		}
	}
	t.Logf("versions %d and %d: %d served by the library, %d by REST", wire.Version-1, wire.Version, served, web.served.Load())
}
