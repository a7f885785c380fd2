package kernel

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// watch opens a Watch, or skips where the kernel does not let us.
func watch(t *testing.T, ports []uint16, processes []int) *Watch {
	t.Helper()
	w, err := Open(ports, processes)
	if errors.Is(err, ErrNotPermitted) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func TestWatchSeesRoundTripsAndWaits(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		s, err := ln.Accept()
		if err == nil {
			defer s.Close()
			io.Copy(s, s)
		}
	}()
	w := watch(t, []uint16{uint16(ln.Addr().(*net.TCPAddr).Port)}, []int{os.Getpid()})
	s, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b := make([]byte, 64)
	var r Report
	for end := time.Now().Add(10 * time.Second); (r.RTT.Count == 0 || r.Wait.Count == 0) && time.Now().Before(end); {
		for range 50 {
			if _, err := s.Write(b); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(s, b); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Millisecond) // a thread that slept has waited for a core
		if r, err = w.Read(); err != nil {
			t.Fatal(err)
		}
	}
	if r.RTT.Count == 0 || r.RTT.P999 < r.RTT.P50 || r.RTT.P50 > time.Second {
		t.Errorf("round trips: %+v", r.RTT)
	}
	if r.Wait.Count == 0 || r.Wait.P50 <= 0 || r.Wait.P50 > time.Second {
		t.Errorf("waits: %+v", r.Wait)
	}
}

func TestOtherConnectionsAreLeftAlone(t *testing.T) {
	w := watch(t, []uint16{1}, nil)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	s, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s.Write([]byte("x"))
	s.Close()
	if r, err := w.Read(); err != nil || r.RTT.Count != 0 || r.Wait.Count != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestPercentiles(t *testing.T) {
	counts := make([]uint64, 296)
	counts[5], counts[80] = 990, 10 // 5 ns; 4.096 to 4.607 µs
	if d := percentiles(counts); d.Count != 1000 || d.P50 != 5 || d.P99 != 5 || d.P999 != 4607 {
		t.Errorf("%+v", d)
	}
}
