//go:build linux

package chaos

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"downbeat.dev/bench/chaos/account"
	"downbeat.dev/bench/chaos/lan"
)

// Hosts of a world. Backends and callers are numbered from theirs on.
const (
	hereHost      = 1 // this process: strangers, and whoever reads metrics
	schedulerHost = 2
	backendHost   = 10
	callerHost    = 20
)

// Ports of the parts.
const (
	sessionPort = "7070"
	dataPort    = "7071"
	httpPort    = "8000"
	grpcPort    = "8001"
	metricsPort = "8002"
)

// secret is the token of a trial's parts.
const secret = "a secret of the parts of one trial"

// patience is how long a part may take to start or to end.
const patience = time.Minute

// World is one deployment on hosts of its own, and the ledger of its callers' requests. Its methods end the trial
// with a panic that runTrial catches where something cannot be done at all.
type World struct {
	Ledger *account.Ledger
	Random *rand.Rand // of the trial's seed
	lan    *lan.Network
	binary string
	caller []string // command line of a caller's process
	dir    string
	logs   string // where logs go; empty: nowhere
	seed   uint64

	mu      sync.Mutex // guards what follows
	parts   []*process
	callers []*Caller
	lists   []string // addresses of schedulers
	reading sync.WaitGroup
}

// failure is what cannot be done; it is no verdict on the product.
type failure struct{ err error }

func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// newWorld makes an empty world. Without packets all parts share loopback.
func newWorld(o Options, seed uint64, packets bool) (*World, error) {
	dir, err := os.MkdirTemp("", "chaos")
	if err != nil {
		return nil, err
	}
	w := &World{Ledger: account.NewLedger(), Random: rand.New(rand.NewPCG(seed, 7)), binary: o.Binary, caller: o.Caller, dir: dir, logs: o.Logs, seed: seed}
	if err := os.WriteFile(w.tokenFile(), []byte(secret), 0o600); err != nil {
		return nil, errors.Join(err, w.closeWorld())
	}
	if packets {
		if w.lan, err = lan.Open(seed); err != nil {
			return nil, errors.Join(err, w.closeWorld())
		}
	}
	return w, nil
}

func (w *World) tokenFile() string { return filepath.Join(w.dir, "token") }

// address is the host's.
func (w *World) address(host int) string {
	if w.lan == nil {
		return fmt.Sprint("127.0.0.", host)
	}
	return w.lan.Address(host)
}

// addHost puts a host on the network; on loopback it is there.
func (w *World) addHost(host int) {
	if w.lan != nil {
		check(w.lan.Add(host))
	}
}

// command is the command line that runs args on a host.
func (w *World) command(host int, args ...string) []string {
	if w.lan == nil {
		return args
	}
	return w.lan.Command(host, args...)
}

// schedulers is what parts are told.
func (w *World) schedulers() string { return strings.Join(w.lists, ",") }

// startPart runs bin/downbeat on a host.
func (w *World) startPart(host int, name string, args ...string) *process {
	return w.startLimited(host, 0, name, args...)
}

// startLimited is startPart with a bound on descriptors; 0: the host's.
func (w *World) startLimited(host, descriptors int, name string, args ...string) *process {
	args = append([]string{w.binary}, append(args, "-token-file", w.tokenFile())...)
	if descriptors > 0 {
		// A shell sets the bound: os/exec has no setting for a child's limits.
		args = append([]string{"bash", "-c", fmt.Sprintf(`ulimit -n %d; exec "$@"`, descriptors), "bash"}, args...)
	}
	p, err := startProcess(name, w.command(host, args...), io.Discard)
	check(err)
	w.mu.Lock()

	defer w.mu.Unlock()
	w.parts = append(w.parts, p)
	return p
}

// StartSchedulers starts n schedulers on hosts of their own; more than one elect a leader through a file.
func (w *World) StartSchedulers(n int) []*process {
	for i := range n {
		// Every part is told all addresses, so they are complete before the first one starts.
		w.addHost(schedulerHost + i)
		w.lists = append(w.lists, net.JoinHostPort(w.address(schedulerHost+i), sessionPort))
	}
	all := make([]*process, n)
	for i := range n {
		all[i] = w.StartScheduler(i)
	}
	return all
}

// StartScheduler starts scheduler i, again or for the first time.
func (w *World) StartScheduler(i int) *process {
	args := []string{"scheduler", "-listen", w.lists[i], "-metrics", net.JoinHostPort(w.address(schedulerHost+i), metricsPort)}
	if len(w.lists) > 1 {
		// One scheduler needs no election; several elect through a file, which all of them can reach.
		args = append(args, "-scheduler", w.schedulers(), "-election", "file://"+filepath.Join(w.dir, "leader"))
	}
	p := w.startPart(schedulerHost+i, fmt.Sprint("scheduler ", i), args...)
	check(p.awaitLine("scheduler listens", patience))
	return p
}

// StartBackend starts backend i, again or for the first time, with emulated GPUs. models is a repository.
func (w *World) StartBackend(i int, models string, extra ...string) *process {
	p := w.startBackend(i, models, extra...)
	check(p.awaitLine("scheduler connected", patience))
	return p
}

func (w *World) startBackend(i int, models string, extra ...string) *process {
	host := backendHost + i
	return w.startPart(host, fmt.Sprint("backend ", i), append([]string{"backend", "-name", fmt.Sprint("b", i), "-models", models, "-emulate", "1",
		"-scheduler", w.schedulers(), "-data", net.JoinHostPort(w.address(host), dataPort), "-provider", "tcp",
		"-metrics", net.JoinHostPort(w.address(host), metricsPort)}, extra...)...)
}

// StartBackends adds hosts for n backends and starts them.
func (w *World) StartBackends(n int, models string) []*process {
	all := make([]*process, n)

	for i := range n {
		w.addHost(backendHost + i)
		all[i] = w.startBackend(i, models)
	}
	// They start side by side; waiting in turn would take their sum.
	for _, p := range all {
		check(p.awaitLine("scheduler connected", patience))
	}
	return all
}

// harm harms the ways between two hosts.
func (w *World) harm(a, b int, h lan.Harm) { w.lan.Both(a, b, h) }

// get reads a page of a part's.
func (w *World) get(host int, port, path string) (status int, body string, err error) {
	request, err := http.NewRequest(http.MethodGet, "http://"+net.JoinHostPort(w.address(host), port)+path, nil)
	if err != nil {
		return 0, "", err
	}

	request.Header.Set("Authorization", "Bearer "+secret)

	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), err
}

// settleCallers lets every caller leave, and waits for the last of their records.
func (w *World) settleCallers() error {
	var err error
	// A record may still lie in a caller's pipe after the process has gone.
	for _, c := range w.callers {
		err = errors.Join(err, c.Leave())
	}
	w.reading.Wait()
	return err
}

// closeWorld ends all processes and removes all hosts.
func (w *World) closeWorld() error {
	for _, p := range w.parts {
		p.kill()
	}
	for _, c := range w.callers {
		c.process.kill()
	}
	w.reading.Wait()

	// Logs are written before the directory goes, and after the last writer has.
	err := w.writeLogs()
	if w.lan != nil {
		err = errors.Join(err, w.lan.Close())
	}
	return errors.Join(err, os.RemoveAll(w.dir))
}

// writeLogs writes what every process said to a file of its own.
func (w *World) writeLogs() error {
	if w.logs == "" {
		return nil
	}
	err := os.MkdirAll(w.logs, 0o755)
	for i, p := range w.parts {
		name := fmt.Sprintf("%d-%d-%s.log", w.seed, i, strings.ReplaceAll(p.name, " ", "-"))
		err = errors.Join(err, os.WriteFile(filepath.Join(w.logs, name), []byte(p.log.String()), 0o644))
	}
	return err
}
