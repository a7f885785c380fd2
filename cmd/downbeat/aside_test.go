//go:build linux

package main

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"downbeat.dev/core/control"
	"downbeat.dev/internal/logtest"
)

// TestAsideOfABackend: alive and not ready while it looks for its scheduler, ready with it, and not
// without.
func TestAsideOfABackend(t *testing.T) {
	ln, err := control.Listen("127.0.0.2:0") // where hardly anybody else of this host binds until the scheduler comes
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	c := config(t)
	c.Scheduler, c.LogLevel = ln.Addr().String(), "info"
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var log logtest.Buffer
	ended := make(chan error, 1)
	go func() {
		ended <- runParts(ctx, "backend", c, &log, "127.0.0.1:0", []part{func(ctx context.Context, p *parts) error { return p.openBackend(ctx, nil) }})
	}()
	url := ""
	waitFor(t, func() bool {
		if m := regexp.MustCompile(`profiles" address=(\S+)`).FindStringSubmatch(log.String()); m != nil {
			url = "http://" + m[1]
		}
		return url != ""
	})
	status := func(path string) int {
		answer, err := http.Get(url + path)
		if err != nil {
			return 0
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	if live, ready := status("/v2/health/live"), status("/v2/health/ready"); live != 200 || ready != 503 {
		t.Errorf("while starting: live %d, ready %d", live, ready)
	}
	waitFor(t, func() bool { return strings.Contains(log.String(), "waiting for the scheduler") })
	p, err := newParts(config(t), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.openScheduler(c.Scheduler); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return status("/v2/health/ready") == 200 })
	if code := status("/metrics"); code != 200 {
		t.Errorf("metrics: %d", code)
	}
	if err := p.close(); err != nil {
		t.Error(err)
	}
	waitFor(t, func() bool { return status("/v2/health/ready") == 503 })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestWarnsOfWhatItOpens: of a configuration that all parts share, a part names the listeners of its own.
func TestWarnsOfWhatItOpens(t *testing.T) {
	c := config(t)
	c.Listen, c.HTTP, c.Data, c.LogLevel = "0.0.0.0:7070", "0.0.0.0:8000", "0.0.0.0:0", "warn"
	var log logtest.Buffer
	p, err := newParts(c, &log)
	if err != nil {
		t.Fatal(err)
	}
	p.warnExposed("backend", "")
	if !strings.Contains(log.String(), "listeners=data\n") {
		t.Errorf("a backend warns: %q", log.String())
	}
	said := log.String()
	p.config.TLS = t.TempDir()
	p.warnExposed("serve", "")
	if log.String() != said {
		t.Errorf("with tls: %q", log.String())
	}
}
