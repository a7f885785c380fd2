package loglimit

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"downbeat.dev/internal/logtest"
)

func open() (*slog.Logger, *logtest.Buffer, *time.Time) {
	var log logtest.Buffer
	h := New(slog.NewTextHandler(&log, nil))
	now := time.Unix(0, 0)
	h.state.now = func() time.Time { return now }
	return slog.New(h), &log, &now
}

// TestTheSameIsSaidRarely: thousands of strangers cost a few lines, the number of the rest is told, and
// other lines are not touched.
func TestTheSameIsSaidRarely(t *testing.T) {
	log, out, now := open()
	for i := range 5000 {
		log.With("peer", i).Warn("handshake failed", "err", fmt.Sprint("port ", i))
	}
	log.Warn("backend refused", "name", "b1")
	log.With("name", "b2").Warn("backend refused")
	if n := strings.Count(out.String(), "handshake failed"); n != burst {
		t.Errorf("%d lines of 5,000 that say the same, want %d", n, burst)
	}
	if n := strings.Count(out.String(), "backend refused"); n != 2 {
		t.Errorf("%d lines of 2 about different backends", n)
	}

	*now = now.Add(every)
	log.Warn("handshake failed")
	log.Warn("handshake failed")
	if n := strings.Count(out.String(), "handshake failed"); n != burst+1 || !strings.Contains(out.String(), "left_out=4995") {
		t.Errorf("a minute later: %d lines in all\n%s", n, out.String())
	}

	*now = now.Add(time.Hour)
	for range 100 {
		log.Warn("handshake failed")
	}
	if n := strings.Count(out.String(), "handshake failed"); n != 2*burst+1 {
		t.Errorf("an hour later: %d lines in all, want %d", n, 2*burst+1)
	}
}

// TestMadeUpNamesTakeNoMemory: the table of lines is bounded.
func TestMadeUpNamesTakeNoMemory(t *testing.T) {
	log, _, _ := open()
	for i := range 3 * linesMax {
		log.Info("frontend connected", "name", i)
	}
	if n := len(log.Handler().(*Handler).state.lines); n > linesMax {
		t.Errorf("%d lines are remembered, at most %d may be", n, linesMax)
	}
}
