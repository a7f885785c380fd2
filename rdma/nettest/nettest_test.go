// Package nettest runs the data plane between hosts made of network namespaces, and hurts them:
// delay, loss, partition, killed peers. "make test-net" runs it; it needs root and iproute2.
package nettest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/rdma"
)

const (
	childEnv = "DOWNBEAT_NETTEST_HOST" // address on which this process is to be an owner
	runEnv   = "DOWNBEAT_NETTEST"
	token    = "nettest"
	bytesPer = 150 << 10
	stall    = time.Second
)

func TestMain(m *testing.M) {
	if ip := os.Getenv(childEnv); ip != "" {
		if err := beOwner(ip); err != nil {
			fmt.Fprintln(os.Stderr, "owner:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// pattern is byte i of every offered buffer.
func pattern(i int) byte { return byte(i*11 + i>>8) }

type told struct {
	Addr   string
	Remote rdma.Remote
	Left   *rdma.Stats // what was left at the end
}

// beOwner is a host: it offers a buffer until stdin ends, then tells what is left.
func beOwner(ip string) error {
	n, err := rdma.Open(rdma.Config{Listen: ip + ":0", Token: token, Stall: stall,
		Receive: func(from *rdma.Peer, msg []byte) { from.Send(msg) }})
	if err != nil {
		return err
	}
	b, err := n.Alloc(bytesPer)
	if err != nil {
		return err
	}
	for i := range b.Bytes() {
		b.Bytes()[i] = pattern(i)
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(told{Addr: n.Addr(), Remote: b.Offer()}); err != nil {
		return err
	}
	io.Copy(io.Discard, os.Stdin)
	b.Free()
	for end := time.Now().Add(3 * stall); n.Stats().BuffersLive+int64(len(n.Stats().Peers)) > 0 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	left := n.Stats()
	if err := out.Encode(told{Left: &left}); err != nil {
		return err
	}
	return n.Close()
}

// host is a process in a network namespace of its own, joined to ours by a veth pair.
type host struct {
	told
	link string // our end of the veth pair
	ip   string
	cmd  *exec.Cmd
	in   io.Closer
	out  *bufio.Reader
}

func ip(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

var hosts atomic.Int32

// newHost makes the namespace and starts an owner in it.
func newHost(t testing.TB) *host {
	t.Helper()
	if os.Getenv(runEnv) == "" {
		t.Skip("hosts in network namespaces: run make test-net")
	}
	if os.Geteuid() != 0 {
		t.Skip("test-net: skipped: network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("test-net: skipped: no iproute2")
	}
	i := hosts.Add(1)
	ns := fmt.Sprintf("dbnet%d-%d", os.Getpid(), i)
	h := &host{link: fmt.Sprintf("db%d-%d", os.Getpid()%10000, i), ip: fmt.Sprintf("10.88.%d.2", i)}
	if out, err := exec.Command("ip", "netns", "add", ns).CombinedOutput(); err != nil {
		t.Skipf("test-net: skipped: no network namespaces here: %s", out)
	}
	t.Cleanup(func() { exec.Command("ip", "netns", "del", ns).Run() })
	ip(t, "link", "add", h.link, "type", "veth", "peer", "name", "eth0", "netns", ns)
	t.Cleanup(func() { exec.Command("ip", "link", "del", h.link).Run() })
	ip(t, "addr", "add", fmt.Sprintf("10.88.%d.1/24", i), "dev", h.link)
	ip(t, "link", "set", h.link, "up")
	ip(t, "-n", ns, "addr", "add", h.ip+"/24", "dev", "eth0")
	ip(t, "-n", ns, "link", "set", "eth0", "up")
	ip(t, "-n", ns, "link", "set", "lo", "up")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h.cmd = exec.Command("ip", "netns", "exec", ns, exe)
	h.cmd.Env = append(os.Environ(), childEnv+"="+h.ip)
	h.cmd.Stderr = os.Stderr
	h.in, _ = h.cmd.StdinPipe()
	out, _ := h.cmd.StdoutPipe()
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.in.Close(); h.cmd.Process.Kill(); h.cmd.Wait() })
	h.out = bufio.NewReader(out)
	h.told = h.next(t)
	return h
}

func (h *host) next(t testing.TB) told {
	t.Helper()
	line, err := h.out.ReadBytes('\n')
	var v told
	if err == nil {
		err = json.Unmarshal(line, &v)
	}
	if err != nil {
		t.Fatalf("host said %q: %v", line, err)
	}
	return v
}

// end stops the owner and checks that nothing is left of its peers.
func (h *host) end(t testing.TB) {
	t.Helper()
	h.in.Close()
	if v := h.next(t); v.Left.BuffersLive != 0 || v.Left.OffersLive != 0 || len(v.Left.Peers) != 0 {
		t.Errorf("left at the owner: %+v", v.Left)
	}
}

// reader is our own node. At the test's end nothing may be left of it: no buffer, no descriptor.
func reader(t testing.TB) *rdma.Node {
	t.Helper()
	before := descriptors()
	n, err := rdma.Open(rdma.Config{Token: token, Stall: stall})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s := n.Stats(); s.BuffersLive != 0 {
			t.Errorf("buffers left: %+v", s)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		for end := time.Now().Add(5 * time.Second); descriptors() > before; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("%d descriptors, %d before", descriptors(), before)
				break
			}
		}
	})
	return n
}

func descriptors() int {
	all, _ := os.ReadDir("/proc/self/fd")
	return len(all)
}

func connect(t testing.TB, n *rdma.Node, addr string) *rdma.Peer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	p, err := n.Connect(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// read fetches the whole buffer. It fails the test if no outcome comes, or wrong bytes.
func read(t testing.TB, n *rdma.Node, p *rdma.Peer, r rdma.Remote) error {
	b, err := n.Alloc(int(r.Length))
	if err != nil {
		t.Error(err)
		return err
	}
	defer b.Free()
	done := make(chan error, 1)
	p.Read([]rdma.Read{{Dst: b.Bytes(), Src: r}}, func(err error) { done <- err })
	select {
	case err = <-done:
	case <-time.After(20 * time.Second):
		t.Error("a read has no outcome after 20 s")
		<-done
	}
	if err == nil {
		for i, v := range b.Bytes() {
			if v != pattern(i) {
				t.Errorf("byte %d of %d is wrong", i, len(b.Bytes()))
				break
			}
		}
	}
	return err
}

// proxy forwards TCP with harm. All fields may be changed while it runs.
type proxy struct {
	ln    net.Listener
	to    string
	delay atomic.Int64 // ns, each way
	loss  atomic.Int64 // chunks per 1,000 that wait for a retransmission of 200 ms
	hole  atomic.Bool  // nothing passes and nothing is closed
	wait  sync.WaitGroup
	end   chan struct{}
}

func newProxy(t testing.TB, to string) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hostport, _, _ := strings.Cut(to, "#")
	p := &proxy{ln: ln, to: hostport, end: make(chan struct{})}
	p.wait.Add(1)
	go p.run()
	t.Cleanup(func() { close(p.end); ln.Close(); p.wait.Wait() })
	return p
}

func (p *proxy) run() {
	defer p.wait.Done()
	for {
		a, err := p.ln.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", p.to)
		if err != nil {
			a.Close()
			continue
		}
		p.wait.Add(3)
		go p.pump(a, b)
		go p.pump(b, a)
		go func() { defer p.wait.Done(); <-p.end; a.Close(); b.Close() }()
	}
}

// pump forwards one way, in order: what is sent later never overtakes.
func (p *proxy) pump(from, to net.Conn) {
	defer p.wait.Done()
	defer from.Close()
	defer to.Close()
	type chunk struct {
		due time.Time
		b   []byte
	}
	queue := make(chan chunk, 4096)
	p.wait.Add(1)
	go func() {
		defer p.wait.Done()
		for c := range queue {
			time.Sleep(time.Until(c.due))
			for p.hole.Load() {
				select {
				case <-p.end:
					return
				case <-time.After(time.Millisecond):
				}
			}
			if _, err := to.Write(c.b); err != nil {
				return
			}
		}
	}()
	defer close(queue)
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		wait := time.Duration(p.delay.Load())
		if rand.Int64N(1000) < p.loss.Load() {
			wait += 200 * time.Millisecond
		}
		select {
		case queue <- chunk{time.Now().Add(wait), bytes.Clone(buf[:n])}:
		case <-p.end:
			return
		}
	}
}
