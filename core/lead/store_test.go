package lead_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/core/lead"
	"downbeat.dev/core/lead/etcd"
	"downbeat.dev/core/lead/hostfile"
	"downbeat.dev/internal/etcdtest"
)

// stores opens each kind of store, several times for the same record.
func stores(t *testing.T) map[string]func() lead.Store {
	addr, path := etcdtest.Address(etcdtest.Open(t)), filepath.Join(t.TempDir(), "leader")
	open := func(s lead.Store, err error) lead.Store {
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	return map[string]func() lead.Store{
		"etcd": func() lead.Store { return open(etcd.Open([]string{addr}, "downbeat/test/leader", nil)) },
		"file": func() lead.Store { return open(hostfile.Open(path)) },
	}
}

// TestStoresCompareAndSwap shows that of several changes to one state of the record one succeeds, and that everybody
// reads what it wrote.
func TestStoresCompareAndSwap(t *testing.T) {
	for name, open := range stores(t) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			first := open()
			if r, at, err := first.Get(ctx); err != nil || at != "" || r != (lead.Record{}) {
				t.Fatalf("before anybody led: %+v %q %v", r, at, err)
			}

			for round := range 5 {
				before, at, err := first.Get(ctx)
				if err != nil {
					t.Fatal(err)
				}
				var won atomic.Int32
				var wait sync.WaitGroup
				for i := range 4 {
					s := open()
					wait.Go(func() {
						switch _, err := s.Swap(ctx, at, lead.Record{Epoch: uint64(10*(round+1) + i), Holder: "h"}); {
						case err == nil:
							won.Add(1)
						case !errors.Is(err, lead.ErrChanged):
							t.Error(err)
						}
					})
				}
				wait.Wait()
				after, now, err := open().Get(ctx)
				if err != nil || won.Load() != 1 || now == at || after.Epoch <= before.Epoch {
					t.Fatalf("round %d: %d won, %+v (%q) became %+v (%q), %v", round, won.Load(), before, at, after, now, err)
				}
			}
		})
	}
}
