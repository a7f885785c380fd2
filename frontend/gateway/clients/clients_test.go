package clients

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// open writes a file of clients and opens it.
func open(t *testing.T, text string, log *slog.Logger) (*Set, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "clients.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(path, "", log)
	if err != nil {
		t.Fatal(err)
	}
	return s, path
}

func TestRateAndInFlight(t *testing.T) {
	s, _ := open(t, twoClients, nil)
	shop, lab := s.Find(shopToken), s.Find(labToken)
	now := time.Now()
	if s.Find("nobody") != nil || s.Find("") != nil || s.Find(shopToken+"0") != nil {
		t.Error("a token that is nobody's is found")
	}

	// With a rate of ten a second, sent four at a time: the burst of one second is used, and the eleventh must wait a
	// tenth of a second.
	for range 10 {
		if err := shop.Admit(1, now); err != nil {
			t.Fatal(err)
		}
		shop.Done(1)
	}
	if err := shop.Admit(1, now); !errors.Is(err, ErrRate) {
		t.Errorf("the eleventh: %v", err)
	}
	if err := shop.CheckLimits(now); !errors.Is(err, ErrRate) {
		t.Errorf("a look at the eleventh: %v", err)
	}
	now = now.Add(100 * time.Millisecond)
	if err := shop.Admit(1, now); err != nil {
		t.Errorf("a tenth later: %v", err)
	}
	if err := shop.Admit(1, now); !errors.Is(err, ErrRate) {
		t.Errorf("a second one: %v", err)
	}

	// One is under way.
	now = now.Add(time.Hour)
	if err := shop.Admit(4, now); !errors.Is(err, ErrInFlight) {
		t.Errorf("five at a time: %v", err)
	}
	if err := shop.Admit(3, now); err != nil {
		t.Errorf("four at a time: %v", err)
	}
	if err := lab.Admit(100_000, now); err != nil {
		t.Errorf("a client without limits: %v", err)
	}
	all := series(t, s)
	for name, want := range map[string]float64{"downbeat_client_in_flight_requests lab": 100_000, "downbeat_client_in_flight_requests shop": 4,
		"downbeat_client_requests_total shop admitted": 14, "downbeat_client_requests_total shop rate": 3,
		"downbeat_client_requests_total shop in_flight": 4, "downbeat_client_unknown_total": 3} {
		if got := all[name]; got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// series returns the metrics' values, by name and label values.
func series(t *testing.T, s *Set) map[string]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(s)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, family := range families {
		for _, m := range family.Metric {
			name := family.GetName()
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			all[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return all
}

// TestLargeCallIsPaidAfterwards shows that a call with more requests than a second's rate is served once, and delays
// later calls.
func TestLargeCallIsPaidAfterwards(t *testing.T) {
	s, _ := open(t, strings.Replace(twoClients, "    in_flight: 4\n", "", 1), nil)
	shop, now := s.Find(shopToken), time.Now()
	if err := shop.Admit(30, now); err != nil {
		t.Fatal(err)
	}
	if err := shop.Admit(1, now.Add(1900*time.Millisecond)); !errors.Is(err, ErrRate) {
		t.Errorf("before it is paid: %v", err)
	}
	if err := shop.Admit(30, now.Add(2900*time.Millisecond)); !errors.Is(err, ErrRate) {
		t.Errorf("another one before: %v", err)
	}
	if err := shop.Admit(30, now.Add(3*time.Second)); err != nil {
		t.Errorf("another one when it is paid: %v", err)
	}
}

// lines counts the log's lines of a level.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

// TestFileIsReadAgain shows that the file is read again when it changes. An invalid file leaves the clients unchanged
// and is logged once.
func TestFileIsReadAgain(t *testing.T) {
	var log lines
	s, path := open(t, twoClients, slog.New(slog.NewTextHandler(&log, nil)))
	shop, lab := s.Find(shopToken), s.Find(labToken)
	if err := shop.Admit(3, time.Now()); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { s.Watch(ctx, time.Millisecond); close(ended) }()
	defer func() { cancel(); <-ended }()
	write := func(text, said string) {
		t.Helper()
		before := log.count(said)
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		for log.count(said) == before {
			time.Sleep(time.Millisecond)
		}
	}

	write("clients: none", "level=ERROR")
	time.Sleep(20 * time.Millisecond) // many checks of the file
	if n := log.count("level=ERROR"); n != 1 {
		t.Errorf("a broken file is told %d times", n)
	}
	if s.Find(shopToken) != shop || s.Find(labToken) != lab {
		t.Error("a broken file changes the clients")
	}

	// shop gets another token and limit but keeps what is under way; lab goes.
	newToken := strings.ToUpper(shopToken)
	write("clients:\n- {name: shop, token: "+newToken+", in_flight: 3}\n- {name: new, token: "+labToken+"}\n", "level=INFO")
	if s.Find(shopToken) != nil || s.Find(labToken).Name != "new" {
		t.Error("the file's clients are not in force")
	}
	if err := shop.Admit(1, time.Now()); !errors.Is(err, ErrRevoked) {
		t.Errorf("a stream under the old token: %v", err)
	}
	if err := lab.CheckModel("simple"); !errors.Is(err, ErrRevoked) || lab.Allows("simple") {
		t.Errorf("a stream of a client that is gone: %v", err)
	}
	if err := s.Find(newToken).Admit(1, time.Now()); !errors.Is(err, ErrInFlight) {
		t.Errorf("a fourth request: %v", err)
	}
	shop.Done(3)
	if err := s.Find(newToken).Admit(1, time.Now()); err != nil {
		t.Error(err)
	}

	// lab's series have ended with it: a client has four series and one more, besides the one for unknown callers.
	if n := len(series(t, s)); n != 2*5+1 {
		t.Errorf("%d series", n)
	}
}

// TestFindAllocatesNothing: every call finds its client first, so this must allocate nothing.
func TestFindAllocatesNothing(t *testing.T) {
	s, _ := open(t, twoClients, nil)
	if n := testing.AllocsPerRun(100, func() { s.Find(shopToken) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
