package residency

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"

	"downbeat.dev/cuda"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type storeRig struct {
	t   *testing.T
	d   *cuda.Device
	s   *Store
	st  *cuda.Stream
	out *cuda.Slab
}

func openStore(t *testing.T, c Config, fault func(cuda.Site) cuda.Fault) *storeRig {
	t.Helper()
	d, err := cuda.OpenEmulated(cuda.Emulation{Virtual: true, Fault: fault})
	must(t, err)
	s, err := Open(d, c)
	must(t, err)
	st, err := d.NewStream()
	must(t, err)
	out, err := d.AllocHost(1 << 20)
	must(t, err)
	return &storeRig{t, d, s, st, out}
}

func (r *storeRig) close() {
	r.s.Close()
	r.st.Free()
	r.out.Free()
	if err := r.d.Close(); err != nil {
		r.t.Error(err)
	}
}

func (r *storeRig) wait(sub *cuda.Submission) error {
	ev, err := r.d.NewEvent()
	if err != nil {
		return err
	}
	defer ev.Free()
	sub.Record(r.st, ev)
	if err := r.d.Submit(sub); err != nil {
		return err
	}
	return r.d.Wait(context.Background(), ev)
}

// use reads the contents on the device and compares them.
func (r *storeRig) use(now time.Duration, want map[ID][]byte, ids ...ID) error {
	var sub cuda.Submission
	if err := r.s.Acquire(now, ids, &sub, r.st); err != nil {
		return err
	}
	at := 0
	clear(r.out.Bytes())
	for _, id := range ids {
		sub.CopyOut(r.st, r.out.Bytes()[at:at+len(want[id])], r.s.Address(id))
		at += len(want[id])
	}
	if err := r.wait(&sub); err != nil {
		return errors.Join(err, r.s.Release(ids, nil))
	}
	at = 0
	for _, id := range ids {
		if !bytes.Equal(r.out.Bytes()[at:at+len(want[id])], want[id]) {
			return fmt.Errorf("content %d has wrong bytes", id)
		}
		at += len(want[id])
	}
	return r.s.Release(ids, nil)
}

// TestModelsThatDoNotFitKeepServing uses ten times as many models as fit. They keep their bytes through every move,
// and the moves are counted.
func TestModelsThatDoNotFitKeepServing(t *testing.T) {
	r := openStore(t, Config{DeviceBytes: 64 << 10, PinnedBytes: 128 << 10}, nil)
	defer r.close()
	rng := rand.New(rand.NewPCG(7, 7))
	want := map[ID][]byte{}
	for i := range 80 {
		data := make([]byte, 1000+rng.IntN(14000))
		for j := range data {
			data[j] = byte(rng.Uint32())
		}
		id, err := r.s.Add(Content{Name: fmt.Sprint(i), Kind: Parameters, Bytes: int64(len(data)), SLO: time.Duration(1+i%5) * 50 * ms}, data)
		must(t, err)
		want[id] = data
	}
	for i := range 600 {
		a, b := ID(20+rng.IntN(60)), ID(rng.IntN(20)) // the first twenty are used most
		must(t, r.use(time.Duration(i)*ms, want, a, b))
		if i%50 == 0 { // retraining changes one in place
			r.retrain(want, a)
		}
	}
	st := r.s.Stats()
	if st.Hits == 0 || st.LoadsPinned == 0 || st.LoadsPageable == 0 || st.ToPinned == 0 || st.ToPageable == 0 || st.LoadTime == 0 {
		t.Errorf("stats %+v", st)
	}
	if st.Hits+st.Loads != 600*2+600/50 || st.Evictions[Parameters] != st.ToPinned+st.ToPageable {
		t.Errorf("counts do not add up: %+v", st)
	}
	t.Logf("%+v", st)
}

// retrain writes a content on the device.
func (r *storeRig) retrain(want map[ID][]byte, id ID) {
	var sub cuda.Submission
	must(r.t, r.s.Acquire(time.Hour, []ID{id}, &sub, r.st))
	sub.Fill(r.st, r.s.Address(id), 0x5a, int64(len(want[id])))
	must(r.t, r.wait(&sub))
	r.s.Changed(id)
	must(r.t, r.s.Release([]ID{id}, nil))
	want[id] = bytes.Repeat([]byte{0x5a}, len(want[id]))
}

func TestReleaseBehindAnEvent(t *testing.T) {
	r := openStore(t, Config{DeviceBytes: 512, PinnedBytes: 0}, nil)
	defer r.close()
	x, err := r.s.Add(Content{Name: "x", Kind: Intermediates, Bytes: 512}, nil)
	must(t, err)
	y, err := r.s.Add(Content{Name: "y", Kind: Intermediates, Bytes: 512}, nil)
	must(t, err)
	ev, err := r.d.NewEvent()
	must(t, err)
	defer ev.Free()
	var sub cuda.Submission
	must(t, r.s.Acquire(0, []ID{x}, &sub, r.st))
	sub.Fill(r.st, r.s.Address(x), 1, 512)
	sub.CopyOut(r.st, r.out.Bytes()[:512], r.s.Address(x))
	sub.Record(r.st, ev)
	must(t, r.d.Submit(&sub))
	must(t, r.s.Release([]ID{x}, ev)) // still running
	sub.Reset()
	first := r.st
	r.st, err = r.d.NewStream() // another batch's stream
	must(t, err)
	defer first.Free()
	must(t, r.s.Acquire(0, []ID{y}, &sub, r.st))
	sub.Fill(r.st, r.s.Address(y), 2, 512)
	must(t, r.wait(&sub))
	if b := r.out.Bytes(); b[0] != 1 || b[511] != 1 {
		t.Errorf("the next content overwrote one still in use: %d %d", b[0], b[511])
	}
	must(t, r.s.Release([]ID{y}, nil))
	if st := r.s.Stats(); st.Freed != 2 || st.DeviceBytes != 0 {
		t.Errorf("stats %+v", st)
	}
}

// TestFaultAtEverySiteHeals shows that an allocation failure at any site is an error of that use and leaks nothing,
// and that the next use succeeds with the right bytes.
func TestFaultAtEverySiteHeals(t *testing.T) {
	for n := 0; ; n++ {
		calls, hits := 0, 0
		armed := false
		r := openStore(t, Config{DeviceBytes: 4096, PinnedBytes: 4096}, func(s cuda.Site) cuda.Fault {
			if !armed || s.Op == "copy in" || s.Op == "copy out" {
				return cuda.Fault{} // a failed copy makes the device unusable: see cuda's tests
			}
			if calls++; calls == n+1 {
				hits++
				return cuda.Fault{Code: cuda.CodeOutOfMemory}
			}
			return cuda.Fault{}
		})
		want := map[ID][]byte{}
		for i := range 6 {
			data := bytes.Repeat([]byte{byte(i + 1)}, 1500)
			id, err := r.s.Add(Content{Name: fmt.Sprint(i), Kind: Parameters, Bytes: 1500, SLO: ms}, data)
			must(t, err)
			want[id] = data
		}
		armed = true
		for i := range 12 {
			if err := r.use(time.Duration(i)*ms, want, ID(i%6)); err != nil {
				if !errors.Is(err, cuda.ErrOutOfMemory) {
					t.Fatalf("site %d: %v", n, err)
				}
				if err := r.use(time.Duration(i)*ms, want, ID(i%6)); err != nil { // the same use again
					t.Fatalf("site %d, again: %v", n, err)
				}
			}
		}
		armed = false
		for i := range 6 {
			must(t, r.use(time.Second, want, ID(i)))
		}
		r.close()
		if hits == 0 {
			break
		}
	}
}
