//go:build rdma && linux && cgo

package rdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// registrations returns a node's registrations with its device, and the kernel's total count.
func registrations(n *Node) string {
	d, ok := n.verbs.(*verbsDevice)
	if !ok {
		return ""
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	kernel, _ := exec.Command("rdma", "resource", "show").Output()
	qps := regexp.MustCompile(`qp \d+`).Find(kernel)
	mrs := regexp.MustCompile(`mr (\d+)`).FindSubmatch(kernel) // those of segments stay with the pool
	others := -1
	if len(mrs) > 0 {
		others, _ = strconv.Atoi(string(mrs[1]))
	}
	return fmt.Sprintf("%d pairs, %d by number, %d offers, %d outstanding; kernel: %s, %d other mr", len(d.pairs), len(d.byNumber),
		len(d.offers), d.outstanding.Load(), qps, others-len(*d.regions.Load()))
}

const memlockEnv = "DOWNBEAT_RDMA_TEST_MEMLOCK" // RLIMIT_MEMLOCK of this process

// TestVerbsMemlockTooSmall runs itself without privileges and with small limits.
func TestVerbsMemlockTooSmall(t *testing.T) {
	if os.Getenv("DOWNBEAT_RDMA_ADDR") == "" {
		t.Skip("DOWNBEAT_RDMA_ADDR names no address of an RDMA device")
	}
	if limit := os.Getenv(memlockEnv); limit != "" {
		underMemlock(t, limit)
		return
	}
	for _, limit := range []int{64 << 10, 8<<20 + 128<<10, 18 << 20} {
		cmd := exec.Command(os.Args[0], "-test.v", "-test.run", "^TestVerbsMemlockTooSmall$")
		cmd.Env = append(os.Environ(), memlockEnv+"="+strconv.Itoa(limit))
		out, err := withoutLockRight(cmd)
		if err != nil || !bytes.Contains(out, []byte("PASS")) {
			t.Errorf("with %d bytes: %v\n%s", limit, err, out)
		}
		t.Logf("%s", out)
	}
}

// withoutLockRight runs cmd without the right to lock memory beyond the limit.
func withoutLockRight(cmd *exec.Cmd) (out []byte, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, because the thread must end with its bounding set
		if err = unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_IPC_LOCK, 0, 0, 0); err == nil {
			out, err = cmd.CombinedOutput()
		}
	}()
	<-done
	return out, err
}

func underMemlock(t *testing.T, text string) {
	limit, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: uint64(limit), Max: uint64(limit)}); err != nil {
		t.Fatal(err)
	}
	names := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "RLIMIT_MEMLOCK") || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "ulimit -l") {
			t.Errorf("%s: the error does not name limit, need and way out: %v", what, err)
		}
	}
	c := verbsConfig()
	small := limit < 8<<20
	if small {
		_, err := Open(c)
		names("verbs alone", err)
		if !errors.Is(err, ErrNotSupported) {
			t.Error(err)
		}
	}
	c.Providers = []string{"verbs", "tcp"}
	var log bytes.Buffer
	c.Logger = textLogger(&log)
	reader, owner := open(t, c), open(t, c)
	if small {
		names("verbs or tcp", reader.noVerbs)
	}
	p, err := reader.Connect(context.Background(), owner.Addr())
	if err != nil {
		t.Fatal(err)
	}
	src := alloc(t, owner, 3<<20) // its segment exceeds the limit
	defer src.Free()
	fill(src.Bytes(), 1)
	r := src.Offer()
	for range 3 {
		if got, err := readInto(t, p, r); err != nil || !bytes.Equal(got, src.Bytes()) {
			t.Fatal("read: ", err)
		}
	}
	if !strings.Contains(log.String(), "RLIMIT_MEMLOCK") {
		t.Errorf("the log does not name the limit: %s", log.String())
	}
}
