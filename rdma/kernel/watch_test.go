package kernel

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// roleEnv makes this process a watched one, or one without privileges.
const roleEnv = "DOWNBEAT_KERNELTEST"

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "crowd": // more threads than processors
		var one unix.CPUSet
		unix.SchedGetaffinity(0, &one)
		first := 0
		for !one.IsSet(first) {
			first++
		}
		one.Zero()
		one.Set(first)
		runtime.GOMAXPROCS(4)
		for range 4 {
			go func() {
				runtime.LockOSThread()
				unix.SchedSetaffinity(0, &one)
				//lint:ignore SA5002 it is to use up a processor
				for {
				}
			}()
		}
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	case "nobody":
		if err := syscall.Setuid(65534); err != nil {
			fmt.Println(err)
			os.Exit(2)
		}
		_, err := Open(nil, nil)
		fmt.Println(errors.Is(err, ErrNotPermitted), err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// role prepares a separate process.
func role(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe)
	c.Env = append(os.Environ(), roleEnv+"="+name)
	return c
}

// watch opens a Watch, or skips the test if the kernel does not permit it.
func watch(t *testing.T, ports []uint16, processes []int) *Watch {
	t.Helper()
	w, err := Open(ports, processes)
	if errors.Is(err, ErrNotPermitted) && os.Getenv("DOWNBEAT_REQUIRE_KERNEL") == "" {
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

// TestWatchSeesThatProcessorsAreShort: four threads that want one processor cause the tail, and the verdict says so.
func TestWatchSeesThatProcessorsAreShort(t *testing.T) {
	c := role(t, "crowd")
	in, err := c.StdinPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); c.Process.Kill(); c.Wait() }()
	w := watch(t, nil, []int{c.Process.Pid})
	var r Report
	for end := time.Now().Add(20 * time.Second); r.Wait.Count < 50 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if r, err = w.Read(); err != nil {
			t.Fatal(err)
		}
	}
	// Each thread waits for the turns of three others, which is the common case here.
	if r.Wait.Count < 50 || r.Wait.P99 < time.Millisecond || !strings.Contains(r.Verdict(), "processors are short") {
		t.Errorf("%+v: %s", r, r.Verdict())
	}
}

func TestVerdicts(t *testing.T) {
	slow, quick := Delay{Count: 1000, P999: 20 * time.Millisecond}, Delay{Count: 1000, P999: 50 * time.Microsecond}
	for want, r := range map[string]Report{
		"nothing was seen":    {},
		"the network loses":   {RTT: slow, Wait: quick, Retransmits: 3},
		"the network is slow": {RTT: slow, Wait: quick},
		"processors are":      {RTT: quick, Wait: slow},
		"neither":             {RTT: quick, Wait: quick},
	} {
		if got := r.Verdict(); !strings.Contains(got, want) {
			t.Errorf("%+v: %q, want %q", r, got, want)
		}
	}
}

func TestOpenWithoutPrivileges(t *testing.T) {
	if os.Geteuid() != 0 {
		if _, err := Open(nil, nil); !errors.Is(err, ErrNotPermitted) {
			t.Errorf("got %v", err)
		}
		return
	}
	out, err := role(t, "nobody").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "true ") || !strings.Contains(string(out), "root") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestCloseDetaches shows that after Close the kernel holds none of the programs, so no measurement continues.
func TestCloseDetaches(t *testing.T) {
	w, err := Open([]uint16{1}, nil)
	if errors.Is(err, ErrNotPermitted) && os.Getenv("DOWNBEAT_REQUIRE_KERNEL") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var ids []ebpf.ProgramID
	for _, p := range []*ebpf.Program{w.objects.TcpDelay, w.objects.ThreadWoken, w.objects.ThreadNew, w.objects.ThreadSwitched} {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		id, ok := info.ID()
		if !ok {
			t.Skip("the kernel tells no program ids")
		}
		ids = append(ids, id)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) { // the kernel frees them later
			p, err := ebpf.NewProgramFromID(id)
			if errors.Is(err, os.ErrNotExist) {
				break
			}
			if err == nil {
				p.Close()
			}
			if time.Now().After(end) {
				t.Fatalf("program %d is still there: %v", id, err)
			}
		}
	}
}

func TestPercentiles(t *testing.T) {
	counts := make([]uint64, 296)
	counts[5], counts[80] = 990, 10 // 5 ns; 4.096 to 4.607 µs
	if d := percentiles(counts); d.Count != 1000 || d.P50 != 5 || d.P99 != 5 || d.P999 != 4607 {
		t.Errorf("%+v", d)
	}
}
