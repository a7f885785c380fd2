//go:build linux

package chaos

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"downbeat.dev/bench/chaos/account"
)

// Caller is a process that sends requests, and its records.
type Caller struct {
	world   *World
	number  int // in the ledger
	host    int
	process *process
	ready   chan struct{}
	left    bool // killed, or asked to leave
}

// Load is the load of a caller.
type Load struct {
	Model  Model
	Rate   float64 // requests per second
	Budget time.Duration
}

// StartCaller adds host i of the callers and starts a caller on it.
func (w *World) StartCaller(i int, l Load) *Caller {
	w.addHost(callerHost + i)
	c := w.startCaller(i, l)
	c.awaitReady()
	return c
}

// startCaller starts a caller on the existing host i of the callers and does not wait for it.
func (w *World) startCaller(i int, l Load) *Caller {
	number := len(w.callers) + 1

	// Ids have the caller's number in their high bits, so that callers never share one.
	config, err := json.Marshal(CallerConfig{Scheduler: w.schedulers(), Data: net.JoinHostPort(w.address(callerHost+i), dataPort),
		Token: secret, Model: l.Model.Name, Rate: l.Rate, Bytes: l.Model.Bytes, Budget: l.Budget, FirstID: uint64(number) << 40, Seed: w.seed})
	check(err)
	// The pipe carries the caller's records. It closes with the process, which ends the reader's goroutine.
	r, out := io.Pipe()
	p, err := startProcess(fmt.Sprint("caller ", i), w.command(callerHost+i, append(w.caller[:len(w.caller):len(w.caller)], string(config))...), out)
	check(err)
	c := &Caller{world: w, number: number, host: callerHost + i, process: p, ready: make(chan struct{})}

	w.callers = append(w.callers, c)
	w.reading.Go(func() { c.readBook(bufio.NewReader(r)) })
	go func() { <-p.ended; out.Close() }()
	return c
}

// readBook adds the caller's records to the ledger.
func (c *Caller) readBook(r *bufio.Reader) {
	for {
		record, err := account.Read(r)
		if err != nil {
			return
		}
		if record.Kind == account.Ready {
			close(c.ready)
		}
		c.world.Ledger.Note(c.number, record)
	}
}

func (c *Caller) awaitReady() {
	select {
	case <-c.ready:
	case <-c.process.ended:
		check(fmt.Errorf("%s ended at once: %s", c.process.name, lastLines(c.process.log.String(), 5)))
	case <-time.After(patience):
		check(fmt.Errorf("%s is not ready after %v: %s", c.process.name, patience, lastLines(c.process.log.String(), 5)))
	}
}

// sendCommand sends a command to the caller's process.
func (c *Caller) sendCommand(format string, args ...any) {
	_, err := fmt.Fprintf(c.process.stdin, format+"\n", args...)
	check(err)
}

// Rate changes the caller's rate, in requests per second.
func (c *Caller) Rate(r float64) { c.sendCommand("rate %g", r) }

// Burst makes the caller send n requests at once.
func (c *Caller) Burst(n int) { c.sendCommand("burst %d", n) }

// Kill kills the process. Its open requests end with it.
func (c *Caller) Kill() {
	c.left = true
	c.world.Ledger.Killed(c.number)
	c.process.kill()
}

// Pause stops the process for a while. Late ends of its requests then do not count.
func (c *Caller) Pause(d time.Duration) {
	c.world.Ledger.Excuse(c.number)
	c.process.signal(syscall.SIGSTOP)
	time.Sleep(d)
	c.process.signal(syscall.SIGCONT)
}

// Leave makes the caller end after all its requests have ended.
func (c *Caller) Leave() error {
	if c.left {
		return nil
	}
	c.left = true

	// Closing stdin is the command to leave.
	_ = c.process.stdin.Close()
	select {
	case <-c.process.ended:
	case <-time.After(patience):
		c.process.kill()
		return fmt.Errorf("%s did not end within %v: requests of it never ended", c.process.name, patience)
	}

	// A crashed caller may have lost records, so its records cannot be trusted.
	if code := c.process.cmd.ProcessState.ExitCode(); code != 0 {
		return errors.Join(fmt.Errorf("%s ended with code %d", c.process.name, code), errors.New(lastLines(c.process.log.String(), 3)))
	}
	return nil
}

// between returns the outcomes of the requests that it sent between two times.
func (c *Caller) between(from, to int64) account.Share {
	return c.world.Ledger.Between(c.number, from, to)
}

// fallSilent stops the callers' load and waits until the requests under way have ended.
func fallSilent(last time.Duration, callers ...*Caller) {
	for _, c := range callers {
		c.Rate(0)
	}
	time.Sleep(last)
}
