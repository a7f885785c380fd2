package rdma

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

const ownerEnv = "DOWNBEAT_RDMA_TEST_OWNER" // a provider: this process must be an owner of memory

type ownerTold struct {
	Addr   string
	Remote Remote
}

// beOwner offers a buffer, answers every message with a long one, and waits for its end.
func beOwner(provider string) error {
	c := Config{Providers: []string{provider}, Token: "a token", Receive: func(from *Peer, msg []byte) { from.Send(make([]byte, 200<<10)) }}
	if a := os.Getenv("DOWNBEAT_RDMA_ADDR"); a != "" && provider == "verbs" {
		c.Listen = a + ":0"
	}
	n, err := Open(c)
	if err != nil {
		return err
	}
	b, err := n.Alloc(150 << 10)
	if err != nil {
		return err
	}
	json.NewEncoder(os.Stdout).Encode(ownerTold{n.Addr(), b.Offer()})
	io.Copy(io.Discard, os.Stdin)
	return nil
}

// startOwner runs beOwner in a separate process.
func startOwner(t *testing.T, provider string) (told ownerTold, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ownerEnv+"="+provider)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		cmd.Process.Kill()
		in.Close()
		cmd.Wait()
	})
	t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatal("the owner said nothing: ", err)
	}
	if err := json.Unmarshal(line, &told); err != nil {
		t.Fatal(err)
	}
	return told, kill
}

// descriptors counts the open descriptors by their targets.
func descriptors(t *testing.T) string {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, e := range d {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil { // except the listing's own
			kind, _, _ := strings.Cut(to, ":[")
			if strings.Contains(kind, "memfd") {
				kind = "memfd"
			}
			count[kind]++
		}
	}
	delete(count, "memfd") // segments stay with the pool
	return fmt.Sprint(count)
}

// TestPeersKilledMidRead shows that owners that are killed in the middle of reads and messages leave nothing behind:
// each read ends, and buffers, descriptors, queue pairs and registrations are as before.
func TestPeersKilledMidRead(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		provider := c.Providers[0]
		if provider == "local" || c.TLS != nil {
			t.Skip("not between processes of this test")
		}
		c.Receive = func(*Peer, []byte) {}
		reader := open(t, c)
		before, registered := "", ""
		for range 4 {
			told, kill := startOwner(t, provider)
			p := connect(t, reader, told.Addr)
			dst := alloc(t, reader, 150<<10)
			if before != "" {
				granted0(t, p, told.Remote)
			}
			const n = 200
			var ended atomic.Int32
			for i := range n {
				p.Read([]Read{readOf(dst.Bytes(), told.Remote)}, func(error) { ended.Add(1) })
				if i%20 == 0 {
					p.Send([]byte("more"))
				}
				if i == n/2 {
					go kill()
				}
			}
			until(t, "every read ended", func() bool { return ended.Load() == n })
			kill()
			until(t, "the peer is lost", func() bool { return p.Err() != nil && len(reader.Stats().Peers) == 0 })
			dst.Free()
			until(t, "no buffer is left", func() bool { return reader.Stats().BuffersLive == 0 && reader.Stats().OffersLive == 0 })
			if before == "" { // the first round opens what stays: the pool's segments
				before, registered = descriptors(t), registrations(reader)
				continue
			}
			until(t, "descriptors are as before: "+before+", not "+descriptors(t), func() bool { return descriptors(t) == before })
			until(t, "registrations are as before: "+registered+", not "+registrations(reader),
				func() bool { return registrations(reader) == registered })
		}
	})
}

// granted0 reads a few times, so that the segment is known.
func granted0(t *testing.T, p *Peer, r Remote) {
	t.Helper()
	for range 3 {
		if _, err := readInto(t, p, r); err != nil {
			t.Fatal(err)
		}
	}
}
