// Package nettest runs the data plane and the whole system between hosts, and disturbs the network between them:
// delay, jitter, loss, duplication, reordering, partition, killed and stopped processes, crowds of connections. "make
// test-net" makes hosts of network namespaces (root, iproute2). "make test-rdma" runs the same tests over verbs, in
// one virtual machine and between two.
package nettest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/rdma"
)

const (
	ownerEnv = "DOWNBEAT_NETTEST_HOST" // address at which this process must be an owner
	stallEnv = "DOWNBEAT_NETTEST_STALL"
	token    = "nettest-nettest-nettest"
	bytesPer = 150 << 10

	ourDevice = "rxe0" // in guests; the device of this machine's address
)

func TestMain(m *testing.M) {
	role := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "nettest:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if order := os.Getenv(remoteEnv); order != "" {
		os.Exit(beRemote(order))
	}
	if addr := os.Getenv(agentEnv); addr != "" {
		role(beAgent(addr))
	}
	if ip := os.Getenv(ownerEnv); ip != "" {
		role(beOwner(ip))
	}
	if from := os.Getenv(readerEnv); from != "" {
		role(beReader(from))
	}
	if to := os.Getenv(crowdEnv); to != "" {
		role(beCrowd(to))
	}
	os.Exit(m.Run())
}

// pattern returns byte i of every offered buffer.
func pattern(i int) byte { return byte(i*11 + i>>8) }

type told struct {
	Addr   string
	Remote rdma.Remote
	Left   *rdma.Stats // what was left at the end
}

// tell writes v as a line.
func tell(v any) error { return json.NewEncoder(os.Stdout).Encode(v) }

// config returns a node's configuration at an address.
func config(ip, provider string, stall time.Duration) rdma.Config {
	return rdma.Config{Listen: ip + ":0", Token: token, Stall: stall, Providers: []string{provider}}
}

// beOwner is a host: it offers a buffer and returns messages until stdin ends, and then reports what is left.
func beOwner(ip string) error {
	stall, err := time.ParseDuration(os.Getenv(stallEnv))
	if err != nil {
		return err
	}
	c := config(ip, os.Getenv("DOWNBEAT_NETTEST_PROVIDER"), stall)
	c.Receive = func(from *rdma.Peer, msg []byte) { from.Send(msg) }
	n, err := rdma.Open(c)
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
	if err := tell(told{Addr: n.Addr(), Remote: b.Offer()}); err != nil {
		return err
	}
	io.Copy(io.Discard, os.Stdin)
	b.Free()
	for end := time.Now().Add(3 * stall); n.Stats().BuffersLive+int64(len(n.Stats().Peers)) > 0 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	left := n.Stats()
	if err := tell(told{Left: &left}); err != nil {
		return err
	}
	return n.Close()
}

// host is an owner at a place.
type host struct {
	*place
	told
	owner *child
}

// newHost starts an owner that disconnects peers after stall.
func (p *place) newHost(t testing.TB, stall time.Duration) *host {
	t.Helper()
	h := &host{place: p}
	h.owner = p.start(t, []string{ownerEnv + "=" + p.ip, stallEnv + "=" + stall.String(), "DOWNBEAT_NETTEST_PROVIDER=" + p.provider}, "")
	h.told = h.next(t)
	return h
}

func (h *host) next(t testing.TB) told {
	t.Helper()
	var v told
	line := h.owner.line(t, "{")
	if err := json.Unmarshal([]byte(line), &v); err != nil {
		t.Fatalf("host said %q: %v", line, err)
	}
	return v
}

// end stops the owner and checks that nothing of its peers is left.
func (h *host) end(t testing.TB) {
	t.Helper()
	h.owner.in.Close()
	if v := h.next(t); v.Left.BuffersLive != 0 || v.Left.OffersLive != 0 || len(v.Left.Peers) != 0 {
		t.Errorf("left at the owner: %+v", v.Left)
	}
	if code := h.owner.code(t, h.patience); code != 0 {
		t.Errorf("the owner's exit code is %d:\n%s", code, h.owner.text())
	}
}

// mirror is our own node, which counts the messages that owners return.
type mirror struct {
	*rdma.Node
	patience time.Duration
	back     atomic.Uint64 // messages that returned, in order; the next expected number
	wrong    atomic.Uint64 // out of order, twice, or with other bytes
}

// newReader opens our node. At the end of the test nothing of it may be left: no buffer, descriptor, queue pair or
// registration.
func (p *place) newReader(t testing.TB, stall time.Duration) *mirror {
	t.Helper()
	before, held := descriptors(), p.resources(t, ourDevice)
	m := &mirror{patience: p.patience}
	c := config(p.here, p.provider, stall)
	c.Receive = func(_ *rdma.Peer, msg []byte) {
		next := m.back.Load()
		if len(msg) != messageSize(next) || binary.LittleEndian.Uint64(msg) != next {
			m.wrong.Add(1)
			return
		}
		m.back.Store(next + 1)
	}
	var err error
	if m.Node, err = rdma.Open(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s := m.Stats(); s.BuffersLive != 0 {
			t.Errorf("buffers left: %+v", s)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		p.nothingLeft(t, ourDevice, held)
		for end := time.Now().Add(p.patience); descriptors() > before; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("%d descriptors, %d before", descriptors(), before)
				break
			}
		}
	})
	return m
}

// messageSize varies from a few bytes to more than one message of a queue pair.
func messageSize(i uint64) int { return 8 + int(i%5)*700 + int(i%11)/10*40<<10 }

func descriptors() int {
	all, _ := os.ReadDir("/proc/self/fd")
	return len(all)
}

func (m *mirror) connect(t testing.TB, addr string) *rdma.Peer {
	t.Helper()
	p, err := m.reach(addr)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (m *mirror) reach(addr string) (*rdma.Peer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), m.patience)
	defer cancel()
	return m.Connect(ctx, addr)
}

// read fetches the whole buffer. It fails the test if the read does not end, or returns wrong bytes.
func (m *mirror) read(t testing.TB, p *rdma.Peer, r rdma.Remote) error {
	b, err := m.Alloc(int(r.Length))
	if err != nil {
		t.Error(err)
		return err
	}
	defer b.Free()
	done := make(chan error, 1)
	p.Read([]rdma.Read{{Dst: b.Bytes(), Src: r}}, func(err error) { done <- err })
	select {
	case err = <-done:
	case <-time.After(m.patience):
		t.Errorf("a read has no outcome after %v", m.patience)
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

// echo sends n more messages, at most window ahead of the returned ones, and waits until all have returned once and
// in order.
func (m *mirror) echo(t testing.TB, p *rdma.Peer, n, window int) {
	t.Helper()
	first := m.back.Load()
	end := time.Now().Add(m.patience)
	came := func(until uint64) {
		for m.back.Load() < until && m.wrong.Load() == 0 {
			if time.Now().After(end) || p.Err() != nil {
				t.Fatalf("%d of %d messages came back: %v, %+v", m.back.Load()-first, n, p.Err(), m.Stats().Peers)
			}
			time.Sleep(time.Millisecond)
		}
	}
	for i := range n {
		came(first + uint64(max(0, i+1-window)))
		number := first + uint64(i)
		msg := make([]byte, messageSize(number))
		binary.LittleEndian.PutUint64(msg, number)
		if err := p.Send(msg); err != nil {
			t.Fatal(err)
		}
	}
	came(first + uint64(n))
	if w := m.wrong.Load(); w > 0 {
		t.Errorf("%d messages came twice, out of order or with other bytes", w)
	}
}
