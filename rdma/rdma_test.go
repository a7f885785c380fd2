package rdma

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"downbeat.dev/internal/tlstest"
)

// TestMain lets this binary be a peer that a test kills.
func TestMain(m *testing.M) {
	if provider := os.Getenv(ownerEnv); provider != "" {
		if err := beOwner(provider); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// patient is a Stall that exceeds any pause of a host; the default is for deployments.
const patient = 15 * time.Second

// carriers returns the ways to connect two nodes, all of which must pass the contract.
func carriers(t testing.TB) map[string]Config {
	cs := map[string]Config{
		"local": {Providers: []string{"local"}},
		"shm":   {Providers: []string{"shm"}},
		"tcp":   {Providers: []string{"tcp"}},
		"tls":   {Providers: []string{"tcp"}, TLS: tlstest.SelfSigned(t)},
	}
	for name, c := range cs {
		c.Token, c.Stall = "a token", patient
		cs[name] = c
	}
	addVerbs(cs)
	return cs
}

// forAll runs a contract test over every provider.
func forAll(t *testing.T, test func(t *testing.T, c Config)) {
	for name, c := range carriers(t) {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
}

func open(t testing.TB, c Config) *Node {
	t.Helper()
	n, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil && err != ErrClosed {
			t.Errorf("close: %v", err)
		}
	})
	return n
}

func connect(t testing.TB, n *Node, addr string) *Peer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	p, err := n.Connect(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// leastAllocations returns the allocations of one call, in the best of several rounds. The count covers the whole
// process. On a busy host, where calls are slow, it includes the upkeep of links, which then runs in most rounds of many
// calls, but not beside every single one; the allocations of each call are in every round.
func leastAllocations(call func()) float64 {
	least := testing.AllocsPerRun(40, call)
	for round := 0; round < 100 && least > 0; round++ {
		least = min(least, testing.AllocsPerRun(1, call))
	}
	return least
}

// pair opens a connected reader and owner of memory.
func pair(t testing.TB, c Config) (reader, owner *Node, p *Peer) {
	t.Helper()
	reader, owner = open(t, c), open(t, c)
	return reader, owner, connect(t, reader, owner.Addr())
}

func alloc(t testing.TB, n *Node, size int) *Buffer {
	t.Helper()
	b, err := n.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// connOf returns the byte stream of a peer that has one.
func connOf(p *Peer) *conn { return p.link.(*conn) }

// remoteOf names length bytes from offset on of the buffer offered under key.
func remoteOf(key uint64, offset, length uint32) Remote {
	return Remote{Key: key, Offset: offset, Length: length}
}

// readOf returns one read of a chain.
func readOf(dst []byte, src Remote) Read { return Read{Dst: dst, Src: src} }

// fill writes bytes that depend on their position and a seed.
func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + seed*13 + i>>8)
	}
}

// wait runs a chain to its end.
func wait(t testing.TB, p *Peer, chain []Read) error {
	t.Helper()
	ch := make(chan error, 2)
	p.Read(chain, func(err error) { ch <- err })
	select {
	case err := <-ch:
		select {
		case <-ch:
			t.Fatal("done was called twice")
		default:
		}
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("a read never ended")
		return nil
	}
}

// readInto reads one remote into a new buffer and returns a copy of the bytes.
func readInto(t testing.TB, p *Peer, r Remote) ([]byte, error) {
	t.Helper()
	b := alloc(t, p.node, max(1, int(r.Length)))
	defer b.Free()
	err := wait(t, p, []Read{{Dst: b.Bytes()[:r.Length], Src: r}})
	return bytes.Clone(b.Bytes()[:r.Length]), err
}

// textLogger logs to w with serialised writes.
func textLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// TestIdleLoopsLeaveProcessorsToOthers: if the loops of a process would keep more than half of Go's processors, they
// keep none. An idle loop then waits like a goroutine, and other work finds a processor.
func TestIdleLoopsLeaveProcessorsToOthers(t *testing.T) {
	defer processors.Store(processors.Load())
	one := open(t, Config{Token: "t", Providers: []string{"tcp"}})
	processors.Store(2 * int32(len(one.loops)))
	if !keepsProcessor() {
		t.Errorf("a node's %d loops keep none of %d processors", len(one.loops), processors.Load())
	}
	open(t, Config{Token: "t", Providers: []string{"tcp"}})
	if keepsProcessor() {
		t.Errorf("the loops of two nodes keep %d of %d processors", loopCount.Load(), processors.Load())
	}

	// A goroutine in Go's poller is in "IO wait", one in the kernel in "syscall".
	for range 100 {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		waits := 0
		for _, g := range bytes.Split(stacks, []byte("\n\n")) {
			if bytes.Contains(g, []byte("(*rest).wait")) && bytes.Contains(g, []byte("[IO wait")) {
				waits++
			}
		}
		if waits == int(loopCount.Load()) {
			return
		}
		time.Sleep(tickEvery / 5)
	}
	t.Error("idle loops do not wait in Go's poller")
}

// TestLoopsThatKeepNoProcessor shows that a loop that waits in Go's poller serves, ticks and ends like one that waits
// in the kernel.
func TestLoopsThatKeepNoProcessor(t *testing.T) {
	defer processors.Store(processors.Load())
	processors.Store(0)
	for name, test := range map[string]func(*testing.T){"reads": TestReadChain, "messages": TestMessages, "many at once": TestConcurrentUse,
		"a peer that stalls": TestPeerThatStalls, "a peer that closes": TestEveryReadEndsWhenThePeerCloses, "no allocations": TestReadAllocatesNothing} {
		t.Run(name, test)
	}
}
