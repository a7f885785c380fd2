package rdma

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"downbeat.dev/internal/sicklink"
)

// sickPeer returns a reader and an owner behind a path that the test can slow down or cut.
func sickPeer(t *testing.T, c Config) (reader, owner *Node, p *Peer, path *sicklink.Link) {
	t.Helper()
	reader = open(t, c)
	c.Listen = sicklink.FreeAddr(t)
	path = sicklink.Open(t, c.Listen)
	c.Advertise = path.Addr()
	owner = open(t, c)
	return reader, owner, connect(t, reader, owner.Addr()), path
}

// given waits for the end of a read and expects it to be given up. Over TLS the peer is disconnected instead.
func given(t *testing.T, c Config, ended chan error) {
	t.Helper()
	want := ErrGivenUp
	if c.TLS != nil {
		want = ErrPeerLost
	}
	select {
	case err := <-ended:
		if !errors.Is(err, want) {
			t.Errorf("the read ended with %v, want %v", err, want)
		}
	case <-time.After(patient):
		t.Fatal("the read was not given up")
	}
}

// TestReadGivenUp shows that a read that is given up ends at once, that nothing is written to its memory afterwards,
// and that later reads over the same connection are correct, whether or not the read had begun to land.
func TestReadGivenUp(t *testing.T) {
	for name, rate := range map[string]int{"slow": 512 << 10, "dark": sicklink.Dark} {
		for carrier, c := range carriers(t) {
			if c.Providers[0] != "tcp" {
				continue
			}
			t.Run(name+"/"+carrier, func(t *testing.T) {
				reader, owner, p, path := sickPeer(t, c)
				src, dst := alloc(t, owner, 1<<20), alloc(t, reader, 1<<20)
				defer src.Free()
				defer dst.Free()
				fill(src.Bytes(), 5)
				r := src.Offer()

				path.Set(sicklink.Well, rate)
				first, second := make(chan error, 2), make(chan error, 2)
				p.ReadWithin(time.Hour, []Read{readOf(dst.Bytes()[:700_000], remoteOf(r.Key, 0, 700_000))}, nil, func(err error) { first <- err })
				p.ReadWithin(time.Hour, []Read{readOf(dst.Bytes()[700_000:], remoteOf(r.Key, 700_000, 1<<20-700_000))}, nil, func(err error) { second <- err })
				time.Sleep(100 * time.Millisecond) // slow: some bytes of the first read land
				p.GiveUp()
				given(t, c, first)
				given(t, c, second)

				clear(dst.Bytes())
				path.Set(sicklink.Well, sicklink.Well)
				if c.TLS == nil {
					got, err := readInto(t, p, r)
					if err != nil || !bytes.Equal(got, src.Bytes()) {
						t.Errorf("a read after it: %v, right %v", err, bytes.Equal(got, src.Bytes()))
					}
				}
				if len(bytes.Trim(dst.Bytes(), "\x00")) != 0 {
					t.Error("memory was written after its read was given up")
				}
			})
		}
	}
}

// TestReadPastItsLimit shows that a chain has its own time limit, however steadily its bytes arrive, and that a chain
// without a limit is not given up.
func TestReadPastItsLimit(t *testing.T) {
	for carrier, c := range carriers(t) {
		if c.Providers[0] != "tcp" {
			continue
		}
		t.Run(carrier, func(t *testing.T) {
			reader, owner, p, path := sickPeer(t, c)
			src, dst := alloc(t, owner, 1<<20), alloc(t, reader, 2<<20)
			defer src.Free()
			defer dst.Free()
			r := src.Offer()

			path.Set(sicklink.Well, 64<<10)
			limited, free := make(chan error, 2), make(chan error, 2)
			p.ReadWithin(20*time.Millisecond, []Read{readOf(dst.Bytes()[:1<<20], r)}, nil, func(err error) { limited <- err })
			p.Read([]Read{readOf(dst.Bytes()[1<<20:], r)}, func(err error) { free <- err })
			given(t, c, limited)
			path.Set(sicklink.Well, sicklink.Well)
			var want error
			if c.TLS != nil {
				want = ErrPeerLost // it was disconnected
			}
			if err := <-free; !errors.Is(err, want) {
				t.Errorf("the read without a limit: %v, want %v", err, want)
			}
		})
	}
}

// TestReadWithinAllocatesNothing shows that a limit costs reads that end in time nothing.
func TestReadWithinAllocatesNothing(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		if raceEnabled || c.TLS != nil {
			t.Skip("counts allocations of plain code")
		}
		reader, owner, p := pair(t, c)
		src, dst := alloc(t, owner, 4096), alloc(t, reader, 4096)
		defer src.Free()
		defer dst.Free()
		chain, ended := []Read{readOf(dst.Bytes(), src.Offer())}, make(chan error, 1)
		done := func(err error) { ended <- err }
		one := func() {
			p.ReadWithin(time.Minute, chain, nil, done)
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
		}
		for range 100 {
			one()
		}
		if n := leastAllocations(one); n > 0 {
			t.Errorf("%.1f allocations", n)
		}
	})
}
