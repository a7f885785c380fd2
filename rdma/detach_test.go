package rdma

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"downbeat.dev/rdma/stream"
)

// slowReader is a peer over the byte stream of a provider. It takes nothing unless the test reads.
func slowReader(t *testing.T, n *Node) net.Conn {
	t.Helper()
	hostport, _, _ := strings.Cut(n.Addr(), "#")
	network, addr := "tcp", hostport
	if n.cfg.Providers[0] == "shm" {
		network, addr = "unix", socketName(n.id)
	}
	dial := func() (net.Conn, error) {
		s, err := net.Dial(network, addr)
		if err != nil || n.cfg.TLS == nil {
			return s, err
		}
		c := n.cfg.TLS.Clone()
		c.ServerName = "127.0.0.1"
		return tls.Client(s, c), nil
	}
	s, err := greetAgain(t, dial, stream.NodeID{1}, n.cfg.Token)
	if err != nil {
		t.Fatal(err)
	}
	s.SetDeadline(time.Now().Add(patient))
	return s
}

// ask posts a chain of one read.
func ask(t *testing.T, s net.Conn, id uint64, r Remote) {
	t.Helper()
	if _, err := s.Write(stream.AppendRemote(stream.Frame{Body: stream.RemoteBytes, Kind: stream.KindRead, Count: 1, ID: id}.Append(nil), r)); err != nil {
		t.Fatal(err)
	}
}

// skipEchoes reads frames up to the header of one that is not an echo, because the node sends echoes at any time.
func skipEchoes(t *testing.T, s net.Conn) {
	t.Helper()
	for kind := stream.KindEcho; kind == stream.KindEcho; {
		var b [stream.HeaderBytes]byte
		if _, err := io.ReadFull(s, b[:]); err != nil {
			t.Fatal(err)
		}
		f, err := stream.ParseFrame(b[:])
		if err != nil {
			t.Fatal(err)
		}
		kind = f.Kind
	}
}

// referred counts the runs of offered buffers that wait for n's peers.
func referred(n *Node) (runs int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for p := range n.peers {
		c := connOf(p)
		c.out.mu.Lock()
		runs += c.out.frames.Referred()
		c.out.mu.Unlock()
	}
	return runs
}

// streams runs a test over every provider whose reads may travel over a byte stream.
func streams(t *testing.T, test func(t *testing.T, c Config)) {
	for name, c := range carriers(t) {
		if name != "local" {
			t.Run(name, func(t *testing.T) { test(t, c) })
		}
	}
}

// TestWithdrawDoesNotWaitForASlowReader shows that Withdraw returns a buffer although a peer has not taken the bytes
// that it requested. The slow peer then gets the bytes that were offered, whatever the owner has written since.
func TestWithdrawDoesNotWaitForASlowReader(t *testing.T) {
	streams(t, func(t *testing.T, c Config) {
		n := open(t, c)
		b := alloc(t, n, 24<<20)
		defer b.Free()
		fill(b.Bytes(), 7)
		want := bytes.Clone(b.Bytes())
		s := slowReader(t, n)
		ask(t, s, 1, b.Offer())
		until(t, "the read is under way", func() bool { return referred(n) != 0 })

		b.Withdraw()
		clear(b.Bytes())
		if n.copied.Load() == 0 {
			t.Error("nothing was kept for the reader: the test has not held the buffer")
		}
		skipEchoes(t, s)
		got := make([]byte, 1+len(want))
		if _, err := io.ReadFull(s, got); err != nil {
			t.Fatalf("the slow reader: %v", err)
		}
		if got[0] != stream.StatusOK || !bytes.Equal(got[1:], want) {
			t.Error("the slow reader got other bytes than were offered")
		}
		until(t, "the copy is freed", func() bool { return n.copied.Load() == 0 })
	})
}

// TestSlowReaderCostsBoundedMemory shows that a peer that repeatedly requests one buffer and takes nothing costs
// bounded memory, and is then disconnected.
func TestSlowReaderCostsBoundedMemory(t *testing.T) {
	streams(t, func(t *testing.T, c Config) {
		n := open(t, c)
		b := alloc(t, n, 16<<20)
		defer b.Free()
		s, r := slowReader(t, n), b.Offer()
		for id := range uint64(3 + copiedMax/(16<<20)) {
			ask(t, s, id, r)
		}
		until(t, "all reads are under way", func() bool { return referred(n) >= 2+copiedMax/(16<<20) })

		b.Withdraw()
		if k := n.copied.Load(); k > copiedMax {
			t.Errorf("%d bytes are kept for it", k)
		}
		cutOff(t, s)
		until(t, "the copies are freed", func() bool { return n.copied.Load() == 0 })
	})
}
