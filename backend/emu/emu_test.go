package emu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/core/model"
	"downbeat.dev/cuda"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func tensor(name string, datatype model.Datatype, shape ...int64) model.Tensor {
	return model.Tensor{Name: name, Datatype: datatype, Shape: shape}
}

func testModels(t testing.TB) []*device.Model {
	var all []model.Tensor
	for _, d := range []model.Datatype{"FP32", "FP16", "BF16", "FP64", "BOOL", "UINT8", "INT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64"} {
		all = append(all, tensor("out_"+string(d), d, 3, 5))
	}
	return []*device.Model{
		devicetest.Emulated(t, "image", 8, 10*time.Microsecond, 20*time.Microsecond,
			[]model.Tensor{tensor("image", "UINT8", 16, 16, 3)}, []model.Tensor{tensor("scores", "FP32", 10)}),
		devicetest.Emulated(t, "every-datatype", 3, 10*time.Microsecond, 0,
			[]model.Tensor{tensor("a", "FP32", 7), tensor("b", "BOOL", 1)}, all),
	}
}

func openEmulated(t *testing.T) device.Executor {
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestContract(t *testing.T) {
	devicetest.Contract(t, contractCase(t))
}

func contractCase(t *testing.T) devicetest.Case {
	all := testModels(t)
	unmeasured := *all[0]
	unmeasured.Profile = nil
	return devicetest.Case{Open: openEmulated, Models: all, Want: Pattern, Corrupt: &unmeasured,
		Weights: all[0].Source, Updated: func(input []byte) []byte { return Pattern(all[0], input) }, Other: all[1].Source}
}

func TestExecuteTakesTheProfile(t *testing.T) {
	m := devicetest.Emulated(t, "m", 4, time.Millisecond, 2*time.Millisecond, []model.Tensor{tensor("x", "FP32", 1)}, []model.Tensor{tensor("y", "FP32", 1)})
	e := openEmulated(t).(*Executor)
	defer e.Close()
	slots := devicetest.Slots(t, 1, device.SlotBytes([]*device.Model{m}))
	if err := devicetest.Load(e, m, slots); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		rows int
		slow float64
		want time.Duration
	}{{1, 0, 3 * time.Millisecond}, {4, 0, 6 * time.Millisecond}, {2, 2.5, 10 * time.Millisecond}} {
		e.Inject(Fault{Slow: c.slow})
		start := time.Now()
		if err := device.Execute(e, device.Batch{Model: m, Slot: slots[0], Rows: c.rows}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < c.want {
			t.Errorf("%d rows, %v times slower: %v, want at least %v", c.rows, c.slow, took, c.want)
		}
	}
}

func TestFaults(t *testing.T) {
	m := testModels(t)[0]
	e := openEmulated(t).(*Executor)
	slots := devicetest.Slots(t, 1, device.SlotBytes([]*device.Model{m}))
	if err := devicetest.Load(e, m, slots); err != nil {
		t.Fatal(err)
	}
	b := device.Batch{Model: m, Slot: slots[0], Rows: 1}
	e.Inject(Failing)
	if err := device.Execute(e, b); err == nil || errors.Is(err, device.ErrLost) || !strings.Contains(err.Error(), "launch out of resources") {
		t.Errorf("got %v, want the injected error", err)
	}
	release := make(chan struct{})
	e.Inject(Fault{Op: "launch", Device: cuda.Fault{Hang: true, Until: release}})
	done := make(chan error, 1)
	go func() { done <- device.Execute(e, b) }()
	select {
	case err := <-done:
		t.Fatalf("a hanging batch ended: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	e.Inject(Fault{})
	close(release)
	if err := <-done; err != nil {
		t.Errorf("after the hang: %v", err)
	}
	e.Inject(Lost)
	if err := device.Execute(e, b); !errors.Is(err, device.ErrLost) {
		t.Errorf("got %v, want device.ErrLost", err)
	}
	e.Inject(Fault{})
	if err := device.Execute(e, b); !errors.Is(err, device.ErrLost) {
		t.Errorf("a lost device answers %v", err)
	}
	if err := e.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestPlannedFaults(t *testing.T) {
	plans, err := ParseFaults("1:lost@2, 2:alloc", 3)
	if err != nil || plans[0] != (Planned{}) || plans[1].After != 2 || plans[2].Fault.Op != "alloc" {
		t.Fatalf("%+v, %v", plans, err)
	}
	m := testModels(t)[0]
	slots := devicetest.Slots(t, 1, device.SlotBytes([]*device.Model{m}))
	for i, p := range plans {
		e, err := Open(Options{Plan: p})
		if err != nil {
			t.Fatal(err)
		}
		if err := devicetest.Load(e, m, slots); (err != nil) != (i == 2) || err != nil && !errors.Is(err, cuda.ErrOutOfMemory) {
			t.Errorf("GPU %d: load: %v", i, err)
		}
		for n := 0; n < 3 && i < 2; n++ {
			err := device.Execute(e, device.Batch{Model: m, Slot: slots[0], Rows: 1})
			if errors.Is(err, device.ErrLost) != (i == 1 && n == 2) {
				t.Errorf("GPU %d, batch %d: %v", i, n, err)
			}
		}
		if err := e.Close(); err != nil {
			t.Errorf("GPU %d: close: %v", i, err)
		}
	}
	for _, text := range []string{"lost", "0:broken", "x:lost", "3:lost", "-1:lost", "0:lost@x", "0:alloc@5", "0:lost,0:hang"} {
		if _, err := ParseFaults(text, 3); err == nil || !strings.Contains(err.Error(), "fault: ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestBatchesEndOnTime shows that batches end when their profile says, within the accuracy of the host's timers: the
// median of many is within a fifth of a millisecond even on a busy host, and none is early.
func TestBatchesEndOnTime(t *testing.T) {
	m := devicetest.Emulated(t, "m", 4, 500*time.Microsecond, 0, []model.Tensor{tensor("x", "UINT8", 100_000)}, []model.Tensor{tensor("y", "FP32", 1000)})
	e := openEmulated(t).(*Executor)
	defer e.Close()
	slots := devicetest.Slots(t, 1, device.SlotBytes([]*device.Model{m}))
	if err := devicetest.Load(e, m, slots); err != nil {
		t.Fatal(err)
	}
	var late []time.Duration
	for i := range 60 {
		rows := 1 + i%4
		start := time.Now()
		if i%3 == 0 {
			e.Arrived(m, slots[0], device.AllInputs, 0, rows)
		}
		if err := device.Execute(e, device.Batch{Model: m, Slot: slots[0], Rows: rows}); err != nil {
			t.Fatal(err)
		}
		late = append(late, time.Since(start)-m.Profile.Exec(rows))
	}
	slices.Sort(late)
	t.Logf("late by %v, %v at the median, %v at most", late[0], late[30], late[59])
	if late[0] < 0 {
		t.Errorf("a batch ended %v early", -late[0])
	}
}

func TestLoadWithoutProfile(t *testing.T) {
	m := testModels(t)[0]
	m.Profile = nil
	e := openEmulated(t)
	defer e.Close()
	if _, err := e.Load(m); err == nil || !strings.Contains(err.Error(), "no profile") {
		t.Error("a model without a profile was loaded")
	}
}

func TestPatternIsValidNumbers(t *testing.T) {
	m := testModels(t)[1]
	for i := range byte(50) {
		out := Pattern(m, bytes.Repeat([]byte{i}, m.InBytes))
		f := math.Float32frombits(binary.LittleEndian.Uint32(out[m.Outputs[0].Offset:]))
		if f < 0 || f >= 1000 || f != float32(int(f)) {
			t.Errorf("FP32 output %v, want a whole number below 1000", f)
		}
		for _, b := range out[m.Outputs[4].Offset:][:m.Outputs[4].Bytes] {
			if b > 1 {
				t.Errorf("BOOL output %d", b)
			}
		}
	}
	if bytes.Equal(Pattern(m, make([]byte, m.InBytes)), Pattern(m, bytes.Repeat([]byte{1}, m.InBytes))) {
		t.Error("two inputs have one pattern")
	}
}

func TestHalf(t *testing.T) {
	for n, want := range map[uint32]uint16{0: 0, 1: 0x3c00, 2: 0x4000, 3: 0x4200, 999: 0x63ce} {
		if got := halfBits(n); got != want {
			t.Errorf("half(%d) = %#04x, want %#04x", n, got, want)
		}
	}
}
