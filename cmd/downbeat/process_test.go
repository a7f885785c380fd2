//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"downbeat.dev/cuda/cudatest"
	"downbeat.dev/frontend"
	"downbeat.dev/internal/apiserver"
	"downbeat.dev/internal/logtest"
)

// argsVariable holds the command line, one word a line, of a test binary that is to be bin/downbeat.
const argsVariable = "DOWNBEAT_TEST_ARGS"

func TestMain(m *testing.M) {
	cudatest.ServeOwner()
	if account := os.Getenv(accountVariable); account != "" {
		if err := apiserver.MountAccount(account); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if args, ok := os.LookupEnv(argsVariable); ok {
		os.Args = append([]string{"downbeat"}, strings.Split(args, "\n")...)
		main()
		return
	}
	os.Exit(m.Run())
}

// process is one part of a deployment in a process of its own.
type process struct {
	cmd  *exec.Cmd
	args []string
	log  *logtest.Buffer
}

// startProcess runs binary, or this test's binary in its place when empty, with a command line. The
// process ends with the test at the latest.
func startProcess(t *testing.T, binary string, args ...string) *process {
	t.Helper()
	p := newProcess(binary, args...)
	p.start(t)
	return p
}

// newProcess is a process that start starts.
func newProcess(binary string, args ...string) *process {
	p := &process{log: new(logtest.Buffer), args: args}
	if binary != "" {
		p.cmd = exec.Command(binary, args...)
	} else {
		p.cmd = exec.Command("/proc/self/exe")
		p.cmd.Env = append(os.Environ(), argsVariable+"="+strings.Join(args, "\n"))
	}
	p.cmd.Stderr = p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return p
}

func (p *process) start(t *testing.T) {
	t.Helper()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.end(syscall.SIGKILL)
		if t.Failed() {
			t.Logf("%s:\n%s", strings.Join(p.args, " "), tail(p.log.String(), 40))
		}
	})
}

// end signals the process and waits until it is gone.
func (p *process) end(sig os.Signal) {
	_ = p.cmd.Process.Signal(sig)
	_ = p.cmd.Wait()
}

// tail returns the last lines of a text.
func tail(text string, n int) string {
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "")
}

// freeAddress is an address that nobody listens on, hardly ever taken by others before it is used.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.3:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// dialProcess connects a frontend to a scheduler and waits until its model is ready.
func dialProcess(t *testing.T, o frontend.Options) *frontend.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := frontend.Dial(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	waitFor(t, func() bool { m := c.Model("echo", ""); return m != nil && m.Ready })
	return c
}

// flow sends a request every few milliseconds until it is stopped, and keeps what did not end well.
type flow struct {
	stop chan struct{}
	wait sync.WaitGroup

	mu     sync.Mutex
	served int
	failed []error
}

func startFlow(c *frontend.Client, every, budget time.Duration) *flow {
	f := &flow{stop: make(chan struct{})}
	f.wait.Go(func() {
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-f.stop:
				return
			case <-t.C:
				f.wait.Go(func() { f.ask(c, budget) })
			}
		}
	})
	return f
}

func (f *flow) ask(c *frontend.Client, budget time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), budget)
	defer cancel()
	r, err := c.InferCopy(ctx, "echo", bytes.Repeat([]byte{7}, 16))
	r.Release()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.failed = append(f.failed, err)
	} else {
		f.served++
	}
}

// end stops the flow, waits for the last answer, and returns how many were served and what failed.
func (f *flow) end() (int, []error) {
	close(f.stop)
	f.wait.Wait()
	return f.served, f.failed
}
