package guard

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// countedConn counts how often its timers are moved.
type countedConn struct {
	net.Conn
	moves int
}

func (c *countedConn) SetReadDeadline(t time.Time) error {
	c.moves++
	return c.Conn.SetReadDeadline(t)
}

// admitPair returns a connection of a table, and its other end.
func admitPair(t *testing.T) (*Connection, *countedConn, net.Conn) {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	counted := &countedConn{Conn: near}
	return NewConnections(Limits{All: 1, PerAddress: 1}, true).admitConnection(counted), counted, far
}

// TestDeadlinesEndReadsWhenAskedTo shows that a deadline that is repeatedly moved later ends a read at the last one
// set, and that a timer set for an earlier one does not.
func TestDeadlinesEndReadsWhenAskedTo(t *testing.T) {
	c, _, _ := admitPair(t)
	began := time.Now()
	for i := range 4 {
		if err := c.SetReadDeadline(began.Add(time.Duration(i+1) * 50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a read past its deadline ends with %v", err)
	}
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("a read ended after %v, 200 ms were its deadline", took)
	}

	// The next read has no deadline, so it waits for its byte.
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() { _, err := c.Read(make([]byte, 1)); got <- err }()

	// A deadline that is moved earlier ends a read that is already waiting.
	time.Sleep(20 * time.Millisecond)
	if err := c.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a read whose deadline was moved back ends with %v", err)
	}
}

// TestWritesGoOnPastAnEarlierTimer shows that a write continues where a timer set for an earlier deadline has
// interrupted it, and that no byte is sent twice.
func TestWritesGoOnPastAnEarlierTimer(t *testing.T) {
	c, _, far := admitPair(t)
	_ = c.SetWriteDeadline(time.Now().Add(30 * time.Millisecond))
	_ = c.SetWriteDeadline(time.Now().Add(time.Minute))

	want := bytes.Repeat([]byte("downbeat"), 100)
	wrote := make(chan error, 1)
	go func() { _, err := c.Write(want); wrote <- err }()

	// Half of it is accepted at once, the rest after the first timer has ended.
	got := make([]byte, len(want))
	if _, err := io.ReadFull(far, got[:len(got)/2]); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	if _, err := io.ReadFull(far, got[len(got)/2:]); err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; err != nil || !bytes.Equal(got, want) {
		t.Errorf("the write ended with %v, its bytes are right: %v", err, bytes.Equal(got, want))
	}
}

// TestDeadlinesOfCallsMoveTimersTwice: the deadlines that an HTTP server sets for each call move the timer twice,
// when a pending read is ended and after it.
func TestDeadlinesOfCallsMoveTimersTwice(t *testing.T) {
	c, counted, _ := admitPair(t)
	const calls = 100
	for range calls {
		now := time.Now()
		for _, end := range []time.Time{now.Add(2 * time.Minute), {}, now.Add(10 * time.Second), now.Add(time.Minute), time.Unix(1, 0), {}} {
			if err := c.SetReadDeadline(end); err != nil {
				t.Fatal(err)
			}
		}
	}
	if counted.moves > 2*calls+4 {
		t.Errorf("%d moves of the timer for %d calls, want 2 for each", counted.moves, calls)
	}
}
