//go:build linux

package main

import (
	"os"
	"regexp"
	"syscall"
	"testing"
	"time"

	"downbeat.dev/frontend"
)

// unitDelay is how long the shipped systemd unit waits before it starts a part again.
func unitDelay(t *testing.T) time.Duration {
	t.Helper()
	text, err := os.ReadFile("../../deploy/systemd/downbeat@.service")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^StartLimitIntervalSec=0$`).Match(text) {
		t.Error("the unit gives a part up that fails a few times in a row: want StartLimitIntervalSec=0")
	}
	m := regexp.MustCompile(`(?m)^RestartSec=(\S+)$`).FindSubmatch(text)
	if m == nil {
		t.Fatal("the unit has no RestartSec")
	}
	d, err := time.ParseDuration(string(m[1]))
	if err != nil {
		d, err = time.ParseDuration(string(m[1]) + "s")
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestRestartedSchedulerLosesNothing: a scheduler that is killed, or told to stop, and that the shipped
// unit starts again, costs no request whose budget outlasts that.
func TestRestartedSchedulerLosesNothing(t *testing.T) {
	delay := unitDelay(t)
	models, listen := repository(t), freeAddress(t)
	run := func() *process {
		return startProcess(t, "", "scheduler", "-listen", listen, "-metrics", "")
	}
	scheduler := run()
	startProcess(t, "", "backend", "-scheduler", listen, "-models", models, "-emulate", "2")
	c := dialProcess(t, frontend.Options{Scheduler: listen})

	f := startFlow(c, 5*time.Millisecond, 20*time.Second)
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGKILL, syscall.SIGTERM} {
		time.Sleep(300 * time.Millisecond)
		scheduler.end(sig)
		time.Sleep(delay + time.Second) // and as long as a slow host takes to start it
		scheduler = run()
		waitFor(t, func() bool { return c.Connected() && c.Ready() })
	}
	served, failed := f.end()
	if len(failed) > 0 || served < 100 {
		t.Errorf("%d served, %d lost, the first: %v", served, len(failed), failed)
	}
}
