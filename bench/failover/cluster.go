package failover

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// cluster is the measured processes.
type cluster struct {
	c          Config
	addrs      []string // of the schedulers
	schedulers []*part
	backends   []*part
	said       journal
}

// part is one process. Its log shows when it leads.
type part struct {
	cmd   *exec.Cmd
	epoch atomic.Int64 // the latest epoch in which it logged that it leads; 0: it never did
	read  sync.WaitGroup
}

var leads = regexp.MustCompile(`this scheduler leads".* epoch=(\d+)`)

// startPart starts a process. say receives its log line by line, with the process's name.
func startPart(say func(name, line string), name, binary string, args ...string) (*part, error) {
	p := &part{cmd: exec.Command(binary, args...)}
	log, err := p.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}

	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	p.read.Go(func() { p.watchLog(log, func(line string) { say(name, line) }) })
	return p, nil
}

// watchLog reads the process's log to its end.
func (p *part) watchLog(log io.Reader, say func(line string)) {
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		text := lines.Text()
		say(text)
		if m := leads.FindStringSubmatch(text); m != nil {
			epoch, _ := strconv.ParseInt(m[1], 10, 64) // the pattern admits only digits
			p.epoch.Store(epoch)
		}
	}
}

func (p *part) killPart() {
	// SIGKILL simulates a crash: no handover, no goodbye, no release of the lease.
	_ = p.cmd.Process.Signal(os.Kill)

	// Read the log to its end before Wait closes the pipe.
	p.read.Wait()
	_ = p.cmd.Wait()
}

func startCluster(c Config, dir string) (*cluster, error) {
	cl := &cluster{c: c, schedulers: make([]*part, schedulerCount)}

	var err error
	if cl.addrs, err = freeAddresses(schedulerCount); err != nil {
		return nil, err
	}
	return cl, cl.startAll(dir)
}

// freeAddresses returns free addresses. They are on a separate loopback address, so that no outgoing connection takes
// one meanwhile.
func freeAddresses(n int) ([]string, error) {
	var all []string
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.4:0")
		if err != nil {
			return nil, err
		}
		// Close the listeners together: otherwise the kernel could give one port twice.
		defer ln.Close() // after each has a port
		all = append(all, ln.Addr().String())
	}
	return all, nil
}

func (cl *cluster) startAll(dir string) error {
	for i := range cl.schedulers {
		if err := cl.startScheduler(i); err != nil {
			cl.stopAll()
			return err
		}
	}

	for i := range backendCount {
		b, err := startPart(cl.said.note, fmt.Sprintf("backend %d", i), cl.c.Child, "backend", "-scheduler", cl.schedulerList(), "-models", dir, "-emulate", strconv.Itoa(gpusEach))
		if err != nil {
			cl.stopAll()
			return err
		}
		cl.backends = append(cl.backends, b)
	}
	return nil
}

// schedulerList is the list of schedulers for the parts' flags.
func (cl *cluster) schedulerList() string { return strings.Join(cl.addrs, ",") }

// startScheduler starts or restarts a scheduler.
func (cl *cluster) startScheduler(i int) error {
	p, err := startPart(cl.said.note, fmt.Sprintf("scheduler %d", i), cl.c.Child, "scheduler", "-listen", cl.addrs[i], "-scheduler", cl.schedulerList(), "-election", cl.c.Election, "-metrics", "")
	if err != nil {
		return err
	}
	cl.schedulers[i] = p
	return nil
}

// currentLeader returns the scheduler that leads in the highest epoch; -1: none.
func (cl *cluster) currentLeader() int {
	leader, highest := -1, int64(0)

	for i, p := range cl.schedulers {
		if e := p.epoch.Load(); e > highest {
			leader, highest = i, e
		}
	}
	return leader
}

// awaitLeader waits for another leader than the killed one.
func (cl *cluster) awaitLeader(ctx context.Context, old int) error {
	// The dead leader's log still says that it leads; a new leader has a higher epoch.
	highest := cl.schedulers[old].epoch.Load()
	for end := time.Now().Add(takeOverMax); time.Now().Before(end); {
		for i, p := range cl.schedulers {
			if i != old && p.epoch.Load() > highest {
				return nil
			}
		}

		if err := pauseFor(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return errors.New("no standby took over")
}

// stopAll stops all processes.
func (cl *cluster) stopAll() {
	for _, p := range append(cl.backends, cl.schedulers...) {
		if p != nil {
			p.killPart()
		}
	}
}
