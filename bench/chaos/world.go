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

// Hosts of a world. The numbers of backends and callers start at theirs.
const (
	hereHost      = 1 // this process: strangers, and readers of metrics
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

// World is one deployment on separate hosts, and the ledger of its callers' requests. If a step is impossible, its
// methods end the trial with a panic that runTrial catches.
type World struct {
	Ledger *account.Ledger
	Random *rand.Rand // of the trial's seed
	lan    *lan.Network
	binary string
	caller []string // command line of a caller's process
	dir    string
	logs   string // directory of logs; empty: none
	seed   uint64

	mu      sync.Mutex // guards the fields below
	parts   []*process
	callers []*Caller
	lists   []string // addresses of schedulers
	reading sync.WaitGroup
}

// failure is a step that is impossible on this machine; it is no verdict on the product.
type failure struct{ err error }

func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// newWorld creates an empty world. Without packets all parts share loopback.
func newWorld(o Options, seed uint64, packets bool) (*World, error) {
	dir, err := os.MkdirTemp("", "chaos")
	if err != nil {
		return nil, err
	}
	w := &World{Ledger: account.NewLedger(), Random: rand.New(rand.NewPCG(seed, 7)), binary: o.Binary, caller: o.Caller, dir: dir, logs: o.Logs, seed: seed}
	if err := os.WriteFile(w.tokenFile(), []byte(secret), 0o600); err != nil {
		return nil, errors.Join(err, w.closeWorld())
	}

	// Experiments that harm packets need separate hosts.
	if packets {
		if w.lan, err = lan.Open(seed); err != nil {
			return nil, errors.Join(err, w.closeWorld())
		}
	}
	return w, nil
}

func (w *World) tokenFile() string { return filepath.Join(w.dir, "token") }

// address returns a host's address.
func (w *World) address(host int) string {
	if w.lan == nil {
		return fmt.Sprint("127.0.0.", host)
	}
	return w.lan.Address(host)
}

// addHost adds a host to the network; on loopback it does nothing.
func (w *World) addHost(host int) {
	if w.lan != nil {
		check(w.lan.Add(host))
	}
}

// command returns the command line that runs args on a host.
func (w *World) command(host int, args ...string) []string {
	if w.lan == nil {
		return args
	}
	return w.lan.Command(host, args...)
}

// schedulers returns the list of schedulers for the parts' flags.
func (w *World) schedulers() string { return strings.Join(w.lists, ",") }

// startPart runs bin/downbeat on a host.
func (w *World) startPart(host int, name string, args ...string) *process {
	return w.startLimited(host, 0, name, args...)
}

// startLimited is startPart with a limit of descriptors; 0: the host's.
func (w *World) startLimited(host, descriptors int, name string, args ...string) *process {
	args = append([]string{w.binary}, append(args, "-token-file", w.tokenFile())...)
	if descriptors > 0 {
		// A shell sets the limit: os/exec has no setting for a child's limits.
		args = append([]string{"bash", "-c", fmt.Sprintf(`ulimit -n %d; exec "$@"`, descriptors), "bash"}, args...)
	}
	p, err := startProcess(name, w.command(host, args...), io.Discard)
	check(err)
	w.mu.Lock()

	defer w.mu.Unlock()
	w.parts = append(w.parts, p)
	return p
}

// StartSchedulers starts n schedulers, each on its own host. More than one elect a leader through a file.
func (w *World) StartSchedulers(n int) []*process {
	for i := range n {
		// Every part gets all addresses, so complete them before the first start.
		w.addHost(schedulerHost + i)
		w.lists = append(w.lists, net.JoinHostPort(w.address(schedulerHost+i), sessionPort))
	}
	all := make([]*process, n)
	for i := range n {
		all[i] = w.StartScheduler(i)
	}
	return all
}

// StartScheduler starts or restarts scheduler i.
func (w *World) StartScheduler(i int) *process {
	args := []string{"scheduler", "-listen", w.lists[i], "-metrics", net.JoinHostPort(w.address(schedulerHost+i), metricsPort)}
	if len(w.lists) > 1 {
		// A single scheduler needs no election; several elect through a file that all of them can reach.
		args = append(args, "-scheduler", w.schedulers(), "-election", "file://"+filepath.Join(w.dir, "leader"))
	}
	p := w.startPart(schedulerHost+i, fmt.Sprint("scheduler ", i), args...)
	check(p.awaitLine("scheduler listens", patience))
	return p
}

// StartBackend starts or restarts backend i with emulated GPUs. models is a repository.
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
	// They start in parallel: starting in turn would take the sum of their times.
	for _, p := range all {
		check(p.awaitLine("scheduler connected", patience))
	}
	return all
}

// harm harms the ways between two hosts.
func (w *World) harm(a, b int, h lan.Harm) { w.lan.Both(a, b, h) }

// get reads a page of a part.
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
	// A record may still be in a caller's pipe after the process has ended.
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

	// Write the logs after the last writer has ended, and before removing the directory.
	err := w.writeLogs()
	if w.lan != nil {
		err = errors.Join(err, w.lan.Close())
	}
	return errors.Join(err, os.RemoveAll(w.dir))
}

// writeLogs writes every process's log to a separate file.
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
