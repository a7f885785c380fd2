package failover

import (
	"bytes"
	"log/slog"
	"testing"
	"time"
)

// TestReport: what a kill cost is read from the requests around it.
func TestReport(t *testing.T) {
	const ms = time.Millisecond
	c := Config{Share: 0.5, SLO: 100 * ms, Pause: time.Second}
	var sent []request
	for at := time.Duration(0); at < 10*time.Second; at += 10 * ms {
		q := request{at: at, ended: at + 30*ms, good: true, outlast: at%(100*ms) == 0}
		if at > 5*time.Second && at <= 5*time.Second+40*ms { // the kill's
			q.good = false
		}
		sent = append(sent, q)
	}
	r := newReport(c, []kill{{at: 5 * time.Second, led: 20 * ms}}, sent)
	if r.Bad != 4 || r.Lost != 0 || r.RecoverP99 != 40 || r.GapP99 != 50 || r.GapQuietP99 != 10 {
		t.Errorf("%+v", r)
	}
	if got := c.clusterCapacity(); got < 800 || got > 900 { // 4 GPUs, batches of 17 in 78 ms
		t.Errorf("capacity %v", got)
	}
}

// TestALogTellsWhoLeads: a line that says so is read whatever stands in it besides, such as the room that says it.
func TestALogTellsWhoLeads(t *testing.T) {
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).With("room", "core").Info("this scheduler leads", "epoch", 7)

	var p part
	p.watchLog(&log, func(string) {})
	if e := p.epoch.Load(); e != 7 {
		t.Errorf("epoch %d, want 7", e)
	}
}
