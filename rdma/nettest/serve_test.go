package nettest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// system is a deployment of three processes of bin/downbeat: scheduler, backend, and frontends that send load. It
// runs real models if ONNX Runtime is available, otherwise an emulated one.
type system struct {
	*place
	binary, secret      string
	models              []string // flags that name the models
	scheduler, backend  *child
	schedulerAt, backAt *place // nil: here
	address             string // the scheduler's
	rate                int
	slo, span           time.Duration
}

func newSystem(t testing.TB, p *place) *system {
	t.Helper()
	binary := os.Getenv("DOWNBEAT_BIN")
	if binary == "" {
		t.Fatal("DOWNBEAT_BIN names no bin/downbeat; make test-net and make test-rdma do")
	}
	s := &system{place: p, binary: binary, secret: os.Getenv("DOWNBEAT_NETTEST_TOKEN"), rate: 60, slo: 2 * time.Second, span: 3 * time.Second}
	if p.provider == "verbs" { // emulated processors
		s.rate, s.slo, s.span = 5, 5*time.Second, 6*time.Second
	}
	if s.secret == "" {
		s.secret = filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(s.secret, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dir, real := os.Getenv("DOWNBEAT_NETTEST_MODELS"), true // a guest has its own
	if dir == "" {
		dir, real = repository(t)
	}
	s.models = []string{"-models", dir, "-executors", "1"}
	if !real {
		t.Log("no ONNX Runtime here: the model is emulated")
		s.models = []string{"-models", dir, "-emulate", "1"}
	}
	return s
}

// repository returns a directory of one model, and whether the model is real.
func repository(t testing.TB) (dir string, real bool) {
	t.Helper()
	const model = "vehicle-s"
	if _, err := os.Stat(os.Getenv("ORT_LIB")); err == nil {
		dir = t.TempDir()
		if err := os.CopyFS(filepath.Join(dir, model), os.DirFS("../../models/"+model)); err == nil {
			return dir, true
		}
	}
	dir, err := filepath.Abs("testdata/models")
	if err != nil {
		t.Fatal(err)
	}
	return dir, false
}

func (s *system) run(t testing.TB, at *place, word string, args ...string) *child {
	t.Helper()
	args = append([]string{s.binary, word, "-token-file", s.secret, "-log-level", "info"}, args...)
	return at.start(t, nil, args...)
}

// at returns the address of a place, or our address towards the other place.
func (s *system) at(p *place) string {
	if p == nil {
		return s.here
	}
	return p.ip
}

var listens = regexp.MustCompile(`address=(\S+)`)

func (s *system) startScheduler(t testing.TB, at *place) {
	t.Helper()
	s.schedulerAt = at
	s.scheduler = s.run(t, at, "scheduler", "-listen", s.at(at)+":0", "-metrics", "")
	s.address = listens.FindStringSubmatch(s.scheduler.line(t, "scheduler listens"))[1]
}

func (s *system) startBackend(t testing.TB, at *place) {
	t.Helper()
	s.backAt = at
	s.backend = s.run(t, at, "backend", append(s.models, "-name", "far", "-scheduler", s.address, "-data", s.at(at)+":0", "-provider", s.provider)...)
	s.backend.line(t, "scheduler connected")
}

// load sends load from a process here.
func (s *system) load(t testing.TB, span time.Duration) *child {
	t.Helper()
	s.backend.skip()
	return s.run(t, nil, "load", "-scheduler", s.address, "-data", s.here+":0", "-provider", s.provider,
		"-rate", strconv.Itoa(s.rate), "-duration", span.String(), "-slo", s.slo.String())
}

// flows waits until the backend reads from the newest frontend.
func (s *system) flows(t testing.TB) {
	t.Helper()
	if said := s.backend.line(t, "peer connected"); !strings.Contains(said, "provider="+s.provider) {
		t.Errorf("the inputs do not go by %s: %s", s.provider, said)
	}
}

var sentLine = regexp.MustCompile(`sent (\d+) = (.*); generator`)

// account waits for the end of the load and checks that every request ended with an output or a named outcome. It
// returns the numbers of requests sent and served.
func (s *system) account(t testing.TB, load *child) (sent, served int) {
	t.Helper()
	if code := load.code(t, s.patience); code != 0 {
		t.Fatalf("load: exit code %d", code)
	}
	m := sentLine.FindStringSubmatch(load.text())
	if m == nil {
		t.Fatal("load printed no sum")
	}
	t.Log(m[0])
	sent, _ = strconv.Atoi(m[1])
	sum := 0
	for part := range strings.SplitSeq(m[2], " + ") {
		number, name, _ := strings.Cut(part, " ")
		n, err := strconv.Atoi(number)
		if err != nil || name == "" || strings.HasPrefix(name, "error") || name == "generator limit" {
			t.Errorf("an outcome without a name: %q", part)
		}
		if sum += n; name == "served" {
			served = n
		}
	}
	if sum != sent || sent == 0 {
		t.Errorf("%d sent, %d accounted for", sent, sum)
	}
	return sent, served
}

// flowing starts load and waits until the backend reads from it, or until all has ended. A frontend that reached no
// scheduler within its 10 s reports this, and then another one is started.
func (s *system) flowing(t testing.TB, span time.Duration) *child {
	t.Helper()
	for end := time.Now().Add(s.patience); ; {
		load := s.load(t, span)
		for ended := false; !ended; {
			if strings.Contains(s.backend.since(), "peer connected") {
				s.flows(t)
				return load
			}
			select {
			case <-load.ended:
				ended = true
			case <-time.After(10 * time.Millisecond):
			}
		}
		if !strings.Contains(load.text(), "scheduler unavailable") {
			return load
		}
		if time.Now().After(end) {
			t.Fatal("the scheduler cannot be reached")
		}
	}
}

// serves checks that a new frontend is served.
func (s *system) serves(t testing.TB) {
	t.Helper()
	var served int
	for end := time.Now().Add(s.patience); served == 0; {
		if _, served = s.account(t, s.flowing(t, time.Second)); served == 0 && time.Now().After(end) {
			t.Fatal("nothing is served")
		}
	}
}

// stop ends both ends with SIGTERM. Exit code 0 also means that no buffer and no registration is left.
func (s *system) stop(t testing.TB) {
	t.Helper()
	for _, c := range []*child{s.backend, s.scheduler} {
		c.signal(syscall.SIGTERM)
		if code := c.code(t, s.patience); code != 0 {
			t.Errorf("%s: exit code %d", c.cmd.Args, code)
		}
	}
}

// resources counts queue pairs and similar objects of this machine's devices, or of the named one; "" without verbs.
func (p *place) resources(t testing.TB, device string) string {
	t.Helper()
	if p.provider != "verbs" {
		return ""
	}
	out, err := (*place)(nil).command(nil, "rdma", "resource", "show").Output()
	if err != nil {
		t.Fatalf("rdma resource show: %v", err)
	}
	all := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(slices.DeleteFunc(all, func(line string) bool { return !strings.Contains(line, device) }), ", ")
}

// nothingLeft waits until the devices hold what they held before.
func (p *place) nothingLeft(t testing.TB, device, before string) {
	t.Helper()
	for end := time.Now().Add(p.patience); ; time.Sleep(20 * time.Millisecond) {
		now := p.resources(t, device)
		if now == before {
			if before != "" {
				t.Log("left at the devices: ", now)
			}
			return
		}
		if time.Now().After(end) {
			t.Errorf("the devices still hold\n%s\nbefore it was\n%s", now, before)
			return
		}
	}
}

// TestNetThreeProcesses: scheduler and frontend here, backend on another host. Every request is accounted for, and
// the inputs use the requested provider, also after the backend was killed under load and has returned. A killed
// frontend leaves no trace at the others.
func TestNetThreeProcesses(t *testing.T) {
	p := newPlace(t)
	before := p.resources(t, "")
	s := newSystem(t, p)
	s.startScheduler(t, nil)
	s.startBackend(t, p)
	reads := p.countReads(t)
	load := s.load(t, s.span)
	s.flows(t)
	sent, served := s.account(t, load)
	if served == 0 {
		t.Error("nothing was served")
	}
	reads.check(t, int64(served)/2) // the first ones went over the byte stream

	load = s.load(t, 2*s.span)
	s.flows(t)
	time.Sleep(s.span / 2)
	s.backend.kill()
	<-s.backend.ended
	time.Sleep(s.span / 4)
	s.startBackend(t, p)
	if again, _ := s.account(t, load); again < sent {
		t.Errorf("%d sent, %d in half the time", again, sent)
	}
	load = s.load(t, time.Minute)
	s.flows(t)
	load.kill()
	<-load.ended
	s.serves(t)
	s.stop(t)
	p.nothingLeft(t, "", before)
}

// TestNetThreeProcessesOverABadNetwork runs the control links and the data plane over a bad network, and through a
// partition. Every request ends, and after the partition requests are served again.
func TestNetThreeProcessesOverABadNetwork(t *testing.T) {
	bad := harm{delay: 5 * time.Millisecond, jitter: 2 * time.Millisecond, loss: 2, duplicate: 1, reorder: 10}
	for name, far := range map[string]func(t *testing.T, s *system, p *place){
		"backend far":               func(t *testing.T, s *system, p *place) { s.startScheduler(t, nil); s.startBackend(t, p) },
		"scheduler and backend far": func(t *testing.T, s *system, p *place) { s.startScheduler(t, p); s.startBackend(t, p) },
	} {
		t.Run(name, func(t *testing.T) {
			p, bad := newRoughPlace(t), bad
			if p.provider == "verbs" {
				bad.jitter, bad.reorder = 0, 0 // only soft-RoCE's recovery would run: see TestNetBadNetworks
			}
			if p.kind == "hosts" {
				t.Skip("the orders to the other machine take the same way")
			}
			if p.kind == "wire" && name == "backend far" {
				t.Skip("one way does where processors are emulated")
			}
			before := p.resources(t, "")
			s := newSystem(t, p)
			far(t, s, p)
			p.hurt(t, bad)
			s.account(t, s.flowing(t, s.span))
			load := s.flowing(t, 2*s.span)
			p.cut(t)
			time.Sleep(s.span)
			p.heal(t)
			s.account(t, load)
			s.serves(t)
			s.stop(t)
			p.nothingLeft(t, "", before)
			if p.tun != nil {
				p.tun.check(t, bad)
			}
		})
	}
}

// TestNetTenThousandConnectionsAtTheScheduler: ten thousand silent connections at the scheduler do not disturb
// present sessions.
func TestNetTenThousandConnectionsAtTheScheduler(t *testing.T) {
	p := newPlace(t)
	if p.kind != "namespaces" {
		t.Skip("it concerns TCP alone")
	}
	s := newSystem(t, p)
	s.startScheduler(t, nil)
	s.startBackend(t, p)
	load := s.load(t, s.span)
	s.flows(t)
	text, _ := json.Marshal(crowd{To: s.address, Many: 10_000})
	mob := p.start(t, []string{crowdEnv + "=" + string(text)}, "")
	t.Log(mob.line(t, "{"))
	if sent, served := s.account(t, load); served == 0 {
		t.Errorf("%d sent, none served", sent)
	}
	s.serves(t) // after those without a handshake have been turned away
	mob.in.Close()
	s.stop(t)
}

// TestNetProcessPinnedToWhatIsNotThere shows that a pinned provider that is missing is an error that says so, and an
// exit code.
func TestNetProcessPinnedToWhatIsNotThere(t *testing.T) {
	p := newPlace(t)
	s := newSystem(t, p)
	s.startScheduler(t, nil)
	c := s.run(t, nil, "backend", append(s.models, "-scheduler", s.address, "-data", "127.0.0.1:0", "-provider", "verbs")...)
	if code := c.code(t, p.patience); code == 0 || !strings.Contains(c.text(), "not supported") {
		t.Errorf("exit code %d, it said %s", code, fmt.Sprintf("%.300s", c.text()))
	}
}
