package stream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// patient is longer than any stall of a host.
const patient = 30 * time.Second

// TestAnotherVersionIsTold shows that a connector of another version gets an answer that says so.
func TestAnotherVersionIsTold(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	ended := make(chan error, 1)
	go func() {
		defer there.Close()
		_, err := Welcome(there, NodeID{2}, "a token", func() bool { return true })
		ended <- err
	}()

	h := newHello(NodeID{9})
	h.version = 7
	here.SetDeadline(time.Now().Add(patient))
	here.Write(h.appendHello(nil))
	var answer [helloBytes + 1]byte
	if _, err := io.ReadFull(here, answer[:]); err != nil || answer[helloBytes] != greetVersion {
		t.Errorf("another version: %v, status %d", err, answer[helloBytes])
	}
	here.Close()
	if err := <-ended; !errors.Is(err, ErrVersion) {
		t.Errorf("the acceptor ends with %v", err)
	}
}

// TestStrangersGetNothingMadeOfTheToken shows that a stranger gets no data that depends on the token before proving
// that it holds the token.
func TestStrangersGetNothingMadeOfTheToken(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := Welcome(there, NodeID{2}, "a token", func() bool { return true })
		ended <- err
	}()
	here.SetDeadline(time.Now().Add(patient))
	here.Write(newHello(NodeID{1}).appendHello(nil))
	var answer [helloBytes + 1]byte
	if _, err := io.ReadFull(here, answer[:]); err != nil {
		t.Fatal(err)
	}
	here.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if k, _ := here.Read(make([]byte, 1)); k > 0 {
		t.Error("the acceptor says more than its hello")
	}
	here.SetDeadline(time.Now().Add(patient))
	here.Write(make([]byte, macBytes)) // a wrong guess
	var last [1 + macBytes]byte
	if _, err := io.ReadFull(here, last[:]); err != nil {
		t.Fatal(err)
	}
	if last[0] != greetAuth || !bytes.Equal(last[1:], make([]byte, macBytes)) {
		t.Errorf("a wrong proof is answered % x", last)
	}
	if err := <-ended; !errors.Is(err, ErrAuth) {
		t.Errorf("the acceptor ends with %v", err)
	}
}

func FuzzHandshake(f *testing.F) {
	f.Add(newHello(NodeID{1}).appendHello(nil))
	f.Add(binary.LittleEndian.AppendUint16([]byte(magic), 9))
	f.Fuzz(func(t *testing.T, in []byte) {
		s := &script{in: bytes.NewReader(in)}
		if _, err := Welcome(s, NodeID{2}, "token", func() bool { return true }); err == nil {
			t.Fatal("a peer without the token was welcomed")
		}
		s = &script{in: bytes.NewReader(in)}
		if _, err := Greet(s, NodeID{2}, nil, "token"); err == nil {
			t.Fatal("an acceptor without the token was believed")
		}
	})
}

// script is a stream that returns recorded bytes and discards writes.
type script struct{ in io.Reader }

func (s *script) Read(b []byte) (int, error)  { return s.in.Read(b) }
func (s *script) Write(b []byte) (int, error) { return len(b), nil }
