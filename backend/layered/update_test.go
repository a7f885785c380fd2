package layered

import (
	"errors"
	"testing"

	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/cuda"
)

// TestAnUpdateWithoutMemory fails each call of an update in turn that may allocate: the old weights answer on, nothing is
// lost, and once there is memory the update succeeds.
func TestAnUpdateWithoutMemory(t *testing.T) {
	for k := 0; ; k++ {
		hit, failing := "", func(cuda.Site) cuda.Fault { return cuda.Fault{} }
		dev, e, err := openOn(t, cuda.Emulation{Virtual: true, Fault: func(s cuda.Site) cuda.Fault { return failing(s) }}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		m := product(t, "m", 2, 3)
		slots := slotsFor(t, 1, m)
		if err := devicetest.Load(e, m, slots); err != nil {
			t.Fatal(err)
		}
		if got, err := run(t, e, m, slots[0], 1); err != nil || got != 8 {
			t.Fatalf("the first weights: %v, %v", got, err)
		}

		weights := product(t, "m", 3, 3).Source
		failing = devicetest.OutOfMemoryAt(k, &hit)
		u, err := e.Prepare(m, weights)
		failing = func(cuda.Site) cuda.Fault { return cuda.Fault{} }
		if (err == nil) != (hit == "") || err != nil && !errors.Is(err, cuda.ErrOutOfMemory) {
			t.Errorf("call %d (%s): %v", k, hit, err)
		}
		if got, err := run(t, e, m, slots[0], 1); err != nil || got != 8 {
			t.Errorf("call %d (%s): before the switch %v, %v", k, hit, got, err)
		}

		if err != nil {
			if u, err = e.Prepare(m, weights); err != nil {
				t.Errorf("call %d (%s): a second try: %v", k, hit, err)
			}
		}
		if err := u.Switch(); err != nil {
			t.Error(err)
		}
		if got, err := run(t, e, m, slots[0], 1); err != nil || got != 27 {
			t.Errorf("call %d (%s): after the switch %v, %v", k, hit, got, err)
		}
		closeAll(t, hit, dev, e)
		if hit == "" {
			break
		}
	}
}

// TestASwitchEndsNoBatch switches while a batch of the old weights is under way: it ends with them, and its program after
// it.
func TestASwitchEndsNoBatch(t *testing.T) {
	dev, e, err := openOn(t, cuda.Emulation{Virtual: true}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	m := product(t, "m", 2, 1)
	slots := slotsFor(t, 2, m)
	if err := devicetest.Load(e, m, slots); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t, e, m, slots[0], 1); err != nil {
		t.Fatal(err)
	}
	held := e.Memory().DeviceBytes
	u, err := e.Prepare(m, product(t, "m", 3, 1).Source)
	if err != nil {
		t.Fatal(err)
	}

	before, after := rowOf(m, slots[0], 1), rowOf(m, slots[1], 1)
	if err := errors.Join(e.Submit(before), u.Switch(), e.Submit(after), e.Wait(before), e.Wait(after)); err != nil {
		t.Fatal(err)
	}
	if a, b := firstOf(m, slots[0]), firstOf(m, slots[1]); a != 2 || b != 3 {
		t.Errorf("%v before the switch and %v after it, want 2 and 3", a, b)
	}
	if now := e.Memory().DeviceBytes; now != held {
		t.Errorf("%d bytes on the device with the old weights, %d with the new ones", held, now)
	}
	closeAll(t, "switch", dev, e)
}
