package nettest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// ground describes the hosts of a test run. DOWNBEAT_NETTEST chooses:
//
//	1, namespaces  a network namespace per host, TCP ("make test-net")
//	wire           two RDMA devices of one machine, joined by a cable, each with its address
//	hosts          two machines: the other one runs this program as an agent
//
// The last two are for the virtual machines of "make test-rdma"; they use only verbs.
type ground struct {
	kind     string
	provider string
	patience time.Duration // for events that must happen
	stall    time.Duration // for tests in which no peer may be disconnected
	short    time.Duration // for tests in which some peer must be
}

const (
	runEnv    = "DOWNBEAT_NETTEST"
	agentEnv  = "DOWNBEAT_NETTEST_AGENT"  // address at which this process must start others
	remoteEnv = "DOWNBEAT_NETTEST_REMOTE" // order that this process must pass to the agent
	hereIP    = "10.77.0.1"               // of the machines with RDMA devices
	thereIP   = "10.77.0.2"
	agentAddr = thereIP + ":7001"
)

func groundOf(t testing.TB) ground {
	t.Helper()
	g := ground{kind: os.Getenv(runEnv), provider: "tcp", patience: 30 * time.Second, stall: 5 * time.Second, short: time.Second}
	switch g.kind {
	case "":
		t.Skip("hosts in network namespaces: run make test-net")
	case "wire", "hosts": // emulated processors on a busy machine pause for seconds
		g.provider, g.patience, g.stall, g.short = "verbs", 2*time.Minute, 15*time.Second, 3*time.Second
		return g
	}
	g.kind = "namespaces"
	if os.Geteuid() != 0 {
		t.Skip("test-net: skipped: network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("test-net: skipped: no iproute2")
	}
	return g
}

// place is where the processes of a host run, and the network between it and us.
type place struct {
	ground
	ns         string // its network namespace; "" outside namespaces
	here, ip   string // our address towards it, and its own
	link, peer string // our network interface towards it, and its own
	tun        *tunnel
}

var places atomic.Int32

// newPlace returns a place behind an undisturbed network.
func newPlace(t testing.TB) *place { t.Helper(); return makePlace(t, false) }

// newRoughPlace returns a place behind a network that the test can disturb.
func newRoughPlace(t testing.TB) *place { t.Helper(); return makePlace(t, true) }

func makePlace(t testing.TB, rough bool) *place {
	t.Helper()
	p := &place{ground: groundOf(t), here: hereIP, ip: thereIP, link: "eth0", peer: "eth0"}
	switch p.kind {
	case "wire":
		p.link, p.peer = "v0", "v1"
	case "namespaces":
		sweep.Do(sweepOut)
		pid, i := os.Getpid(), places.Add(1)
		p.ns, p.link = fmt.Sprintf("dbnet%d-%d", pid, i), fmt.Sprintf("db%d-%d", pid%10000, i)
		subnet := fmt.Sprintf("10.%d.%d", 80+pid%160, i%256) // two concurrent runs have separate subnets
		p.here, p.ip = subnet+".1", subnet+".2"
		if out, err := exec.Command("ip", "netns", "add", p.ns).CombinedOutput(); err != nil {
			t.Skipf("test-net: skipped: no network namespaces here: %s", out)
		}
		t.Cleanup(func() { exec.Command("ip", "netns", "del", p.ns).Run() })
		if rough {
			p.tun = newTunnel(t, p)
		} else {
			ip(t, "link", "add", p.link, "type", "veth", "peer", "name", p.peer, "netns", p.ns)
		}
		t.Cleanup(func() { exec.Command("ip", "link", "del", p.link).Run() })
		ip(t, "addr", "add", p.here+"/24", "dev", p.link)
		ip(t, "link", "set", p.link, "up")
		ip(t, "-n", p.ns, "addr", "add", p.ip+"/24", "dev", p.peer)
		ip(t, "-n", p.ns, "link", "set", p.peer, "up")
		ip(t, "-n", p.ns, "link", "set", "lo", "up")
	}
	return p
}

var sweep sync.Once

// sweepOut removes the namespaces of killed runs, which may have our addresses.
func sweepOut() {
	all, _ := filepath.Glob("/var/run/netns/dbnet*")
	for _, name := range all {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(name), "dbnet"), "-")
		if _, err := os.Stat("/proc/" + pid); os.IsNotExist(err) {
			exec.Command("ip", "netns", "del", filepath.Base(name)).Run()
		}
	}
}

func ip(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// order is a process for an agent to start.
type order struct{ Env, Args []string }

// command prepares a process at the place; nil: here. env is added to our environment.
func (p *place) command(env []string, args ...string) *exec.Cmd {
	exe, _ := os.Executable()
	if args[0] == "" {
		args = append([]string{exe}, args[1:]...)
	}
	switch {
	case p != nil && p.kind == "hosts":
		o, _ := json.Marshal(order{env, args})
		env, args = []string{remoteEnv + "=" + string(o)}, []string{exe}
	case p != nil && p.ns != "":
		args = append([]string{"ip", "netns", "exec", p.ns}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// do runs a short command at the place.
func (p *place) do(t testing.TB, args ...string) {
	t.Helper()
	if out, err := p.command(nil, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// child is a process whose output the test reads.
type child struct {
	at    *place
	cmd   *exec.Cmd
	in    io.Closer
	said  sync.Mutex // protects lines and next
	lines []string
	next  int           // the line that line reads next
	ended chan struct{} // closed when it has ended and all its output is in lines
}

// start starts a process, which is killed when the test ends.
func (p *place) start(t testing.TB, env []string, args ...string) *child {
	t.Helper()
	c := &child{at: p, cmd: p.command(env, args...), ended: make(chan struct{})}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.cmd.Stdout, c.cmd.Stderr = w, w
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // if this process is killed
	if c.in, err = c.cmd.StdinPipe(); err == nil {
		err = c.cmd.Start()
	}
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.ended)
		defer r.Close()
		for s := bufio.NewScanner(r); s.Scan(); {
			c.said.Lock()
			c.lines = append(c.lines, s.Text())
			c.said.Unlock()
		}
		c.cmd.Wait()
	}()
	t.Cleanup(func() {
		c.kill()
		<-c.ended
		if t.Failed() {
			t.Logf("%s said:\n%s", strings.Join(args, " "), c.text())
		}
	})
	return c
}

func (c *child) text() string {
	c.said.Lock()
	defer c.said.Unlock()
	return strings.Join(c.lines, "\n")
}

// line waits for the next line that contains want.
func (c *child) line(t testing.TB, want string) string {
	t.Helper()
	limit := 30 * time.Second
	if c.at != nil {
		limit = c.at.patience
	}
	over := time.After(limit)
	for ended := false; ; {
		c.said.Lock()
		for c.next < len(c.lines) {
			s := c.lines[c.next]
			if c.next++; strings.Contains(s, want) {
				c.said.Unlock()
				return s
			}
		}
		c.said.Unlock()
		if ended {
			t.Fatalf("it ended and never said %q", want)
		}
		select {
		case <-c.ended:
			ended = true
		case <-over:
			t.Fatalf("it has not said %q within %v", want, limit)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// since returns the unread output.
func (c *child) since() string {
	c.said.Lock()
	defer c.said.Unlock()
	return strings.Join(c.lines[c.next:], "\n")
}

// skip passes over the output so far.
func (c *child) skip() {
	c.said.Lock()
	defer c.said.Unlock()
	c.next = len(c.lines)
}

// code waits for its end and returns its exit code.
func (c *child) code(t testing.TB, limit time.Duration) int {
	t.Helper()
	select {
	case <-c.ended:
		return c.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		t.Errorf("%s: still running after %v", c.cmd.Args, limit)
		return -1
	}
}

// kill ends it like a crash (SIGKILL).
func (c *child) kill() { c.cmd.Process.Kill() }

// signal sends SIGTERM, SIGSTOP or SIGCONT to the process, wherever it is.
func (c *child) signal(s syscall.Signal) {
	if c.at != nil && c.at.kind == "hosts" {
		switch s {
		case syscall.SIGSTOP:
			s = syscall.SIGUSR1
		case syscall.SIGCONT:
			s = syscall.SIGUSR2
		}
	}
	c.cmd.Process.Signal(s)
}

// beRemote stands for a process of the agent: it has that process's output and exit code. It sends the order first,
// and then a byte per event: E for the end of stdin, or a signal's number.
func beRemote(text string) int {
	var s net.Conn
	var err error
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) { // the agent may still be booting
		if s, err = net.DialTimeout("tcp", agentAddr, 30*time.Second); err == nil || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		fmt.Println("remote:", err)
		return 125
	}
	defer s.Close()
	s.Write(append([]byte(text), '\n'))
	go func() { io.Copy(io.Discard, os.Stdin); s.Write([]byte{'E'}) }()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for sig := range signals {
			s.Write([]byte{map[os.Signal]byte{syscall.SIGTERM: byte(syscall.SIGTERM),
				syscall.SIGUSR1: byte(syscall.SIGSTOP), syscall.SIGUSR2: byte(syscall.SIGCONT)}[sig]})
		}
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := s.Read(buf)
		said, rest, ended := bytes.Cut(buf[:n], []byte{0}) // the agent's mark: the exit code follows
		os.Stdout.Write(said)
		if ended {
			if len(rest) == 0 {
				if _, err = io.ReadFull(s, buf[:1]); err == nil {
					rest = buf[:1]
				}
			}
			if len(rest) > 0 {
				return int(rest[0])
			}
		}
		if err != nil {
			return 125
		}
	}
}

// beAgent starts the processes that remotes request, until it is killed.
func beAgent(addr string) error {
	os.Unsetenv(agentEnv) // the processes that it starts have other roles
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Println("agent: ready")
	for {
		s, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer s.Close()
			if err := serveRemote(s); err != nil {
				fmt.Fprintf(s, "agent: %v\n\x00\x7d", err)
			}
		}()
	}
}

func serveRemote(s net.Conn) error {
	in := bufio.NewReader(s)
	line, err := in.ReadBytes('\n')
	var o order
	if err == nil {
		err = json.Unmarshal(line, &o)
	}
	if err != nil {
		return err
	}
	cmd := exec.Command(o.Args[0], o.Args[1:]...)
	cmd.Env = append(os.Environ(), o.Env...)
	cmd.Stdout, cmd.Stderr = s, s
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	go func() {
		for {
			b, err := in.ReadByte()
			switch {
			case err != nil:
				cmd.Process.Kill() // its stand-in was killed
				return
			case b == 'E':
				stdin.Close()
			default:
				cmd.Process.Signal(syscall.Signal(b))
			}
		}
	}()
	cmd.Wait()
	s.Write([]byte{0, byte(max(cmd.ProcessState.ExitCode(), -1))})
	return nil
}
