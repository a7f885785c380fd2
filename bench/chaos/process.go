//go:build linux

package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is one running part of a deployment.
type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	log   textLog
	ended chan struct{} // closed when it has ended
}

// textLog keeps a process's output, up to a limit. It is safe for concurrent use.
type textLog struct {
	mu   sync.Mutex
	text bytes.Buffer
	over int // bytes that were not kept
}

const logMax = 4 << 20

// Write keeps b.
func (l *textLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	// Endless output must not exhaust the memory.
	if l.text.Len() > logMax {
		l.over += len(b)
		return len(b), nil
	}
	return l.text.Write(b)
}

func (l *textLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// startProcess runs a command line. Stdout goes to out, stderr to the process's log; both end with the process.
func startProcess(name string, args []string, out io.Writer) (*process, error) {
	p := &process{name: name, cmd: exec.Command(args[0], args[1:]...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // no process outlives an experiment
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}

	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // ProcessState tells how it ended
		close(p.ended)
	}()
	return p, nil
}

// signal sends a signal; an ended process gets none.
func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// kill kills the process, as a crash does, and waits.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// stop asks the process to end, and kills it if it does not in time.
func (p *process) stop(patience time.Duration) error {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.ended:
		return nil
	case <-time.After(patience):
		p.kill()
		return fmt.Errorf("%s did not end within %v of SIGTERM", p.name, patience)
	}
}

// running reports whether the process is alive.
func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// awaitLine waits until the log holds text.
func (p *process) awaitLine(text string, patience time.Duration) error {
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		switch {
		case strings.Contains(p.log.String(), text):
			return nil
		case !p.running():
			return errors.Join(fmt.Errorf("%s ended before it said %q", p.name, text), errors.New(lastLines(p.log.String(), 5)))
		case time.Now().After(end):
			return errors.Join(fmt.Errorf("%s has not said %q within %v", p.name, text, patience), errors.New(lastLines(p.log.String(), 5)))
		}
	}
}

func lastLines(text string, n int) string {
	lines := strings.SplitAfter(text, "\n")

	return strings.Join(lines[max(0, len(lines)-n):], "")
}
