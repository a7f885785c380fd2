package kubernetes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/core/lead"
	"downbeat.dev/internal/apiserver"
)

// TestLeaseOnAnAPIServer: what the other tests have of a stand-in holds of a real kube-apiserver: the Lease is made
// once, of those who change one state one succeeds, and an old revision is refused.
func TestLeaseOnAnAPIServer(t *testing.T) {
	server := apiserver.Start(t)
	account := t.TempDir()
	for name, text := range map[string][]byte{"ca.crt": server.CA, "token": []byte(server.Token + "\n")} {
		if err := os.WriteFile(filepath.Join(account, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	openOne := func() *Store {
		s, err := openAccount(server.URL, account, "default", "downbeat")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	s := openOne()
	if r, at, err := s.Get(ctx); err != nil || at != "" || r != (lead.Record{}) {
		t.Fatalf("before anybody led: %+v %q %v", r, at, err)
	}
	want := lead.Record{Epoch: 1 << 40, Holder: "s1", Beat: 3}
	first, err := s.Swap(ctx, "", want)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Swap(ctx, "", want); !errors.Is(err, lead.ErrChanged) {
		t.Errorf("made twice: %v", err)
	}
	if r, at, err := s.Get(ctx); err != nil || at != first || r != want {
		t.Errorf("%+v %q %v: want %+v", r, at, err, want)
	}

	for round := range 5 {
		before, at, err := s.Get(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var won atomic.Int32
		var wait sync.WaitGroup
		for i := range 4 {
			rival := openOne()
			wait.Go(func() {
				switch _, err := rival.Swap(ctx, at, lead.Record{Epoch: before.Epoch + uint64(i) + 1, Holder: "h"}); {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, lead.ErrChanged):
					t.Error(err)
				}
			})
		}
		wait.Wait()
		if after, now, err := s.Get(ctx); err != nil || won.Load() != 1 || now == at || after.Epoch <= before.Epoch {
			t.Fatalf("round %d: %d won, %+v (%q) became %+v (%q), %v", round, won.Load(), before, at, after, now, err)
		}
		if _, err := s.Swap(ctx, at, before); !errors.Is(err, lead.ErrChanged) {
			t.Errorf("round %d: an old revision: %v", round, err)
		}
	}

	if err := os.WriteFile(filepath.Join(account, "token"), []byte("of-nobody"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Get(ctx); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("a token of nobody: %v", err)
	}
}
