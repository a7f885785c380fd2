//go:build linux

package lan

import (
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func openNetwork(t *testing.T) *Network {
	t.Helper()
	n, err := Open(1)
	if err != nil {
		t.Skipf("no network of namespaces here: %v", err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// A host in a namespace of its own is heard, not heard while its way is cut, and heard again.
func TestCutWays(t *testing.T) {
	n := openNetwork(t)
	if err := n.Add(2); err != nil {
		t.Skipf("no network of namespaces here: %v", err)
	}
	if _, err := exec.LookPath("ping"); err != nil {
		t.Skip("no ping")
	}
	ping := func(seconds string) bool {
		args := n.Command(2, "ping", "-c", "1", "-W", seconds, n.Address(1))
		return exec.Command(args[0], args[1:]...).Run() == nil
	}
	for _, c := range []struct {
		harm func()
		want bool
	}{
		{func() {}, true},
		{func() { n.Set(1, 2, Harm{Cut: true}) }, false},
		{func() { n.Set(1, 2, Harm{}); n.Set(2, 1, Harm{Cut: true}) }, false},
		{func() { n.Set(2, 1, Harm{Delay: 20 * time.Millisecond}) }, true},
		{func() { n.Both(1, 2, Harm{}) }, true},
	} {
		c.harm()
		patience := "1"
		if c.want {
			patience = "20" // on a busy host
		}
		if got := ping(patience); got != c.want {
			t.Errorf("heard: %v, want %v", got, c.want)
		}
	}
}

// Bytes over a slow way take the time that its rate says.
func TestSlowWays(t *testing.T) {
	var got int
	n := &Network{}
	w := func() *way {
		n.Set(1, 2, Harm{Rate: 100_000, Delay: 10 * time.Millisecond})
		return n.ways[1][2].Load()
	}()
	done := make(chan struct{})
	w.deliver = func(b []byte) {
		if got += len(b); got == 10_000 {
			close(done)
		}
	}
	start := time.Now()
	for range 10 {
		w.takePacket(make([]byte, 1000))
	}
	<-done
	if took := time.Since(start); took < 110*time.Millisecond {
		t.Errorf("10,000 bytes at 100,000 a second and 10 ms took %v", took)
	}
	n.Set(1, 2, Harm{})
	n.running.Wait()
}

// A host that loses power tells nobody: its connections stay open at the other end.
func TestRemovedHostsAreSilent(t *testing.T) {
	n := openNetwork(t)
	if err := n.Add(2); err != nil {
		t.Skipf("no network of namespaces here: %v", err)
	}
	ln, err := net.Listen("tcp", n.Address(1)+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	args := n.Command(2, "bash", "-c", "exec 3<>/dev/tcp/"+n.Address(1)+"/"+port+"; echo here >&3; sleep 60")
	cmd := exec.Command(args[0], args[1:]...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	line := make([]byte, 5)
	if _, err := io.ReadFull(c, line); err != nil || !strings.HasPrefix(string(line), "here") {
		t.Fatalf("%q, %v", line, err)
	}

	if err := n.Remove(2); err != nil {
		t.Error(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if _, err := c.Read(line); err == nil || !err.(net.Error).Timeout() {
		t.Errorf("the other end heard of it: %v", err)
	}
}
