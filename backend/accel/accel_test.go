package accel

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/cuda"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestEarlyRows draws which rows arrive early, which are abandoned, and which change afterwards. Outputs always
// belong to the inputs at Execute.
func TestEarlyRows(t *testing.T) {
	for _, movable := range []bool{true, false} {
		r := open(t, cuda.Emulation{Virtual: true}, movable)
		rng := rand.New(rand.NewPCG(3, 9))
		for round := range 400 {
			slot, rows := rng.IntN(3), 1+rng.IntN(4)
			var v [4]byte
			for i := range rows {
				v[i] = byte(rng.Uint32())
				r.fill(slot, i, v[i])
			}
			for i := 0; i < rows; i += 1 + rng.IntN(2) {
				if rng.IntN(3) > 0 {
					r.Arrived(r.model, r.slots[slot], rng.IntN(3)-1, i, min(rows, i+1+rng.IntN(2)))
				}
			}
			if rng.IntN(4) == 0 {
				r.Abandon(r.model, r.slots[slot])
				if rng.IntN(2) == 0 {
					continue // never runs
				}
				v[0]++
				r.fill(slot, 0, v[0])
			}
			if err := r.execute(slot, rows); err != nil {
				t.Fatal(err)
			}
			for i := range rows {
				r.want(slot, i, v[i])
			}
			if round == 200 {
				r.prog.fail = errors.New("does not fit")
				r.Arrived(r.model, r.slots[0], device.AllInputs, 0, 2)
				if err := r.execute(0, 2); err == nil || errors.Is(err, device.ErrLost) {
					t.Errorf("a program that refuses: %v", err)
				}
				r.prog.fail = nil
			}
		}
		r.close()
	}
}

// stages is a device with the given duration of a batch of four rows in each stage.
type stages struct{ in, compute, out time.Duration }

func (c stages) emulation() cuda.Emulation {
	return cuda.Emulation{Virtual: true, CopyInBandwidth: 4 * rowBytes / c.in.Seconds(), CopyOutBandwidth: 4 * rowBytes / c.out.Seconds(),
		CommandTime: time.Microsecond, KernelTime: func(cuda.Launch) time.Duration { return c.compute }}
}

// flow returns the throughput of consecutive batches of four rows in virtual time, as a share of the throughput of
// the slowest stage alone, with under batches under way, and with or without early rows.
func (c stages) flow(t *testing.T, movable, early bool, under int) (share float64) {
	const batches = 50
	r := open(t, c.emulation(), movable)
	defer r.close()
	arrive := func(slot int) {
		for i := range 4 {
			r.fill(slot, i, byte(slot))
			if early {
				r.Arrived(r.model, r.slots[slot], device.AllInputs, i, i+1)
			}
		}
	}
	batch := func(i int) device.Batch { return device.Batch{Model: r.model, Slot: r.slots[i%4], Rows: 4} }
	begin := r.dev.Now()
	arrive(0)
	for i := range batches + under - 1 {
		if i < batches {
			if err := r.Submit(batch(i)); err != nil {
				t.Fatal(err)
			}
			arrive((i + 1) % 4)
		}
		if last := i - under + 1; last >= 0 {
			if err := r.Wait(batch(last)); err != nil {
				t.Fatal(err)
			}
			r.want(last%4, 3, byte(last%4))
		}
	}
	took := r.dev.Now() - begin
	r.Abandon(r.model, r.slots[batches%4])
	return float64(batches*max(c.in, c.compute, c.out)) / float64(took)
}

// TestStagesOverlap: consecutive batches take as long as their slowest stage. Copies in, compute and copies out of
// different batches overlap when two are under way.
func TestStagesOverlap(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []stages{{ms, 2 * ms, ms / 20}, {2 * ms, ms, ms / 20}, {ms, ms, ms / 20}, {ms, 2 * ms, ms}, {ms / 2, ms, ms}, {ms / 2, ms, 2 * ms}, {ms, ms, ms}} {
		for _, movable := range []bool{true, false} {
			both, late, alone := c.flow(t, movable, true, 2), c.flow(t, movable, false, 2), c.flow(t, movable, true, 1)
			one := c.flow(t, movable, false, 1)
			t.Logf("copy in %-5v compute %-3v copy out %-5v movable %-5v: %.2f of the bound; rows not early %.2f; one at a time %.2f, rows not early %.2f",
				c.in, c.compute, c.out, movable, both, late, alone, one)
			if both < 0.9 {
				t.Errorf("%+v, movable %v: %.2f of the bound, want 0.9 at least", c, movable, both)
			}
			if slow := float64(max(c.in, c.compute, c.out)) / float64(c.in+c.compute+c.out); one > slow+0.02 {
				t.Errorf("%+v, movable %v: %.2f of the bound one at a time: want no more than the sum of its stages lets through, %.2f", c, movable, one, slow)
			}
		}
	}
}

// TestEachCopyStartsWhenItsRowArrives: a batch's rows arrive one per millisecond, which is as long as a row's copy
// takes; when the last has arrived, only its own copy is left.
func TestEachCopyStartsWhenItsRowArrives(t *testing.T) {
	const ms = time.Millisecond
	for _, early := range []bool{true, false} {
		r := open(t, stages{4 * ms, 2 * ms, ms}.emulation(), true)
		begin := r.dev.Now()
		for i := range 4 {
			r.dev.Advance(ms)
			r.fill(0, i, byte(i))
			if early {
				r.Arrived(r.model, r.slots[0], device.AllInputs, i, i+1)
			}
		}
		if err := r.execute(0, 4); err != nil {
			t.Fatal(err)
		}
		want := (4 + 4 + 2 + 1) * ms
		if early {
			want = (4 + 1 + 2 + 1) * ms
		}
		if took := (r.dev.Now() - begin).Round(ms / 10); took != want {
			t.Errorf("early %v: took %v, want %v", early, took, want)
		}
		r.want(0, 3, 3)
		r.close()
	}
}

// TestTwoUnderWay draws batches of two sizes on four slots, some with early rows, with up to two under way: each
// one's outputs belong to its own inputs, whatever the other does.
func TestTwoUnderWay(t *testing.T) {
	for _, movable := range []bool{true, false} {
		r := open(t, cuda.Emulation{Virtual: true}, movable)
		rng := rand.New(rand.NewPCG(7, 5))
		type flight struct {
			device.Batch
			v byte
		}
		var under []flight
		land := func() {
			f := under[0]
			under = under[1:]
			if err := r.Wait(f.Batch); err != nil {
				t.Fatal(err)
			}
			for i := range f.Rows {
				r.want(f.Slot.Index, i, f.v+byte(i))
			}
		}
		for k := range 300 {
			if len(under) == 2 {
				if !movable {
					if err := r.Submit(device.Batch{Model: r.model, Slot: r.slots[k%4], Rows: 1}); !errors.Is(err, device.ErrBusy) {
						t.Fatalf("a third batch under way: %v", err)
					}
				}
				land()
			}
			f := flight{device.Batch{Model: r.model, Slot: r.slots[k%4], Rows: 1 + rng.IntN(4)}, byte(rng.Uint32())}
			for i := range f.Rows {
				r.fill(k%4, i, f.v+byte(i))
				if rng.IntN(2) == 0 {
					r.Arrived(r.model, f.Slot, rng.IntN(3)-1, i, i+1)
				}
			}
			if err := r.Submit(f.Batch); err != nil {
				t.Fatal(err)
			}
			under = append(under, f)
			if rng.IntN(3) == 0 {
				land()
			}
		}
		for len(under) > 0 {
			land()
		}
		r.close()
	}
}

func TestRefusals(t *testing.T) {
	r := open(t, cuda.Emulation{Virtual: true}, false)
	defer r.close()
	if err := devicetest.Load(r, r.model, r.slots); err == nil || !strings.Contains(err.Error(), "loaded already") {
		t.Errorf("loaded twice: %v", err)
	}
	if err := device.Execute(r, device.Batch{Model: testModel(t), Slot: r.slots[0], Rows: 1}); err == nil || !strings.Contains(err.Error(), "not loaded") {
		t.Errorf("an unknown model ran: %v", err)
	}
	if err := device.Execute(r, device.Batch{Model: r.model, Slot: device.NewSlot(9, nil), Rows: 1}); err == nil || !strings.Contains(err.Error(), "not loaded") {
		t.Errorf("an unknown slot was used: %v", err)
	}
	for _, rows := range []int{0, 5, -1} {
		if err := r.execute(0, rows); err == nil || !strings.Contains(err.Error(), "want 1 to 4") {
			t.Errorf("a batch of %d ran: %v", rows, err)
		}
	}
	r.Arrived(testModel(t), r.slots[0], device.AllInputs, 0, 1) // ignored
	r.Abandon(r.model, device.NewSlot(9, nil))
}

func TestWarmPathAllocatesNothing(t *testing.T) {
	r := open(t, cuda.Emulation{}, true)
	defer r.close()
	batch := func() {
		r.Arrived(r.model, r.slots[0], device.AllInputs, 0, 2)
		r.Arrived(r.model, r.slots[0], device.AllInputs, 2, 3)
		if err := r.execute(0, 4); err != nil {
			t.Fatal(err)
		}
		r.Arrived(r.model, r.slots[1], device.AllInputs, 0, 2)
		r.Abandon(r.model, r.slots[1])
		two := [2]device.Batch{{Model: r.model, Slot: r.slots[0], Rows: 1}, {Model: r.model, Slot: r.slots[1], Rows: 2}}
		if err := joinErrors(r.Submit(two[0]), r.Submit(two[1])); err != nil {
			t.Fatal(err)
		}
		if err := joinErrors(r.Wait(two[0]), r.Wait(two[1])); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		batch()
	}
	if n := testing.AllocsPerRun(50, batch); n != 0 { // X3
		t.Errorf("%v allocations per batch", n)
	}
}
