package rdma

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"downbeat.dev/internal/tlstest"
)

// silent opens many connections to a node that never send anything, and keeps that number open until the test ends:
// for each one that the node closes it opens a new one.
func silent(t *testing.T, n *Node, many int) {
	t.Helper()
	hostport, _, _ := strings.Cut(n.Addr(), "#")
	ctx, cancel := context.WithCancel(t.Context())
	var held sync.WaitGroup
	t.Cleanup(func() { cancel(); held.Wait() })
	var first sync.WaitGroup
	first.Add(many)
	for range many {
		held.Go(func() {
			for once := first.Done; ctx.Err() == nil; once = func() {} {
				s, err := net.Dial("tcp", hostport)
				once()
				if err != nil {
					time.Sleep(time.Millisecond)
					continue
				}
				stop := context.AfterFunc(ctx, func() { s.Close() })
				io.Copy(io.Discard, s)
				stop()
				s.Close()
				time.Sleep(time.Millisecond)
			}
		})
	}
	first.Wait()
}

// TestSilentStrangersLockNobodyOut: strangers hold more silent connections than a node has places for handshakes, and
// reconnect at once. A peer with the token still gets in, and the log reports the crowd once.
func TestSilentStrangersLockNobodyOut(t *testing.T) {
	for name, c := range map[string]Config{
		"tcp": {Token: "a token", Providers: []string{"tcp"}, Stall: patient},
		"tls": {Token: "a token", Providers: []string{"tcp"}, Stall: patient, TLS: tlstest.SelfSigned(t)},
	} {
		t.Run(name, func(t *testing.T) {
			var log lockedBuffer
			c.Logger = textLogger(&log)
			n := open(t, c)
			silent(t, n, 2*greetingsMax)

			c.Logger = nil
			good := open(t, c)
			connect(t, good, n.Addr())
			if k := strings.Count(log.String(), "the oldest are closed"); k != 1 {
				t.Errorf("the log tells %d times that connections are closed, want 1", k)
			}
		})
	}
}

// TestCloseEndsADial: a node that closes does not wait for an acceptor that takes connections and says nothing.
func TestCloseEndsADial(t *testing.T) {
	for name, c := range map[string]Config{
		"tcp": {Token: "a token", Providers: []string{"tcp"}, Stall: 10 * time.Minute},
		"tls": {Token: "a token", Providers: []string{"tcp"}, Stall: 10 * time.Minute, TLS: tlstest.SelfSigned(t)},
	} {
		t.Run(name, func(t *testing.T) {
			mute, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer mute.Close()
			n, err := Open(c)
			if err != nil {
				t.Fatal(err)
			}

			failed := make(chan error, 1)
			go func() {
				_, err := n.Connect(context.Background(), mute.Addr().String())
				failed <- err
			}()
			s, err := mute.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			var first [1]byte
			if _, err := io.ReadFull(s, first[:]); err != nil {
				t.Fatal(err)
			}

			closed := make(chan error, 1)
			go func() { closed <- n.Close() }()
			select {
			case err := <-closed:
				if err != nil || <-failed == nil {
					t.Errorf("close: %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the node waits for the acceptor")
			}
		})
	}
}

// TestCloseRefusesNobody: a node that closes during a handshake ends it, and does not log it as a refused peer.
func TestCloseRefusesNobody(t *testing.T) {
	var log lockedBuffer
	n, err := Open(Config{Token: "a token", Providers: []string{"tcp"}, Stall: 10 * time.Minute, Logger: textLogger(&log)})
	if err != nil {
		t.Fatal(err)
	}
	hostport, _, _ := strings.Cut(n.Addr(), "#")
	s, err := net.Dial("tcp", hostport)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()

	// The first byte of a handshake: the node waits for the rest.
	if _, err := s.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	spoke := func() bool {
		n.greetings.mu.Lock()
		defer n.greetings.mu.Unlock()
		return len(n.greetings.all) == 1 && n.greetings.all[0].spoke
	}
	for !spoke() {
		time.Sleep(time.Millisecond)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if text := log.String(); strings.Contains(text, "refused") {
		t.Errorf("the log of a node that was closed: %s", text)
	}
}

// TestSilentConnectionIsClosed shows that a connection that sends nothing is closed long before Stall.
func TestSilentConnectionIsClosed(t *testing.T) {
	n := open(t, Config{Token: "a token", Providers: []string{"tcp"}, Stall: 10 * time.Minute})
	hostport, _, _ := strings.Cut(n.Addr(), "#")
	s, err := net.Dial("tcp", hostport)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	cutOff(t, s)
}

// TestWhoGivesWay shows that, of many handshakes, the oldest silent one gives way, and first one from the same
// address.
func TestWhoGivesWay(t *testing.T) {
	var g greetings
	log := textLogger(io.Discard)
	begin := func(from string) *greeting {
		here, there := net.Pipe()
		t.Cleanup(func() { here.Close(); there.Close() })
		return g.beginGreeting(addressed{here, &net.TCPAddr{IP: net.ParseIP(from), Port: 1}}, log)
	}
	honest := begin("10.0.0.1")
	g.noteBytes(honest)
	var silent []*greeting
	for range greetingsEach + 1 {
		silent = append(silent, begin("10.0.0.2"))
	}
	if !silent[0].gone || silent[1].gone || honest.gone {
		t.Error("the address that has too many does not lose its own oldest")
	}
	for i := range greetingsMax {
		begin(net.IPv4(10, 1, byte(i>>8), byte(i)).String())
	}
	if !silent[1].gone || honest.gone || len(g.all) != greetingsMax {
		t.Errorf("%d handshakes; the oldest silent one gave way: %v, one that spoke: %v", len(g.all), silent[1].gone, honest.gone)
	}
	if !g.endGreeting(silent[1]) || g.endGreeting(honest) {
		t.Error("end does not tell who gave way")
	}
	if a, b := sourceOf(&net.TCPAddr{IP: net.ParseIP("2001:db8::1")}), sourceOf(&net.TCPAddr{IP: net.ParseIP("2001:db8::2")}); a != b {
		t.Errorf("%v and %v of one network are two sources", a, b)
	}
}

type addressed struct {
	net.Conn
	from net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.from }

// lockedBuffer is written by a node's goroutines while a test reads it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
