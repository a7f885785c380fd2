package emu

import (
	"errors"
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/core/model"
)

func openLanes(t *testing.T, o Options) (all []*Executor) {
	t.Helper()
	all, err := OpenLanes(o)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestLaneContract(t *testing.T) {
	c := contractCase(t)
	c.Open = func(t *testing.T) device.Executor {
		var all []device.Executor
		for _, e := range openLanes(t, Options{Lanes: 3}) {
			all = append(all, e)
		}
		return c.AmongLanes(t, all)
	}
	devicetest.Contract(t, c)
}

// loadOnLanes loads a model on every lane and returns a batch of one row for each. The lanes are closed when the test
// ends.
func loadOnLanes(t *testing.T, all []*Executor, m *device.Model) (batches []device.Batch) {
	t.Helper()
	for _, e := range all {
		slots := devicetest.Slots(t, 1, device.SlotBytes([]*device.Model{m}))
		if err := devicetest.Load(e, m, slots); err != nil {
			t.Fatal(err)
		}
		batches = append(batches, device.Batch{Model: m, Slot: slots[0], Rows: 1})
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	return batches
}

// TestLanesSlowEachOtherDown: of a model that uses 0.75 of the GPU, a batch on one of two lanes takes as long as alone
// while the other rests, and 1.5 times as long while it runs, which is what the lane's profile says.
func TestLanesSlowEachOtherDown(t *testing.T) {
	const alone, beside = 40 * time.Millisecond, 60 * time.Millisecond
	m := devicetest.Emulated(t, "m", 1, alone, 0, []model.Tensor{tensor("x", "FP32", 1)}, []model.Tensor{tensor("y", "FP32", 1)})
	m.Source.Config.GPUUse = 0.75
	p, err := LaneProfile(m.Profile, m.Source, 2)
	if err != nil || p.Exec(1) != beside {
		t.Fatalf("a lane's profile is %v, %v; want %v", p.Exec(1), err, beside)
	}

	shared := &machine{running: make([]kernelRun, 2)}
	for i, want := range []time.Duration{alone, beside} {
		if took := shared.shareTime(i, 0.75, beside); took != want {
			t.Errorf("a kernel on lane %d takes %v, want %v", i, took, want)
		}
	}

	// A heavier model beside it slows it down by more than its own profile says.
	if took, want := shared.shareTime(0, 0.25, alone), alone; took != want {
		t.Errorf("a light kernel beside a heavy one takes %v, want %v", took, want)
	}
	if took, want := shared.shareTime(1, 1, 80*time.Millisecond), 50*time.Millisecond; took != want {
		t.Errorf("a heavy kernel beside a light one takes %v, want %v", took, want)
	}
}

// TestLanesRunAtTheSameTime: batches on two lanes take less than one after the other, and none is early.
func TestLanesRunAtTheSameTime(t *testing.T) {
	const alone = 300 * time.Millisecond
	m := devicetest.Emulated(t, "m", 1, alone, 0, []model.Tensor{tensor("x", "FP32", 1)}, []model.Tensor{tensor("y", "FP32", 1)})
	m.Source.Config.GPUUse = 0.5
	all := openLanes(t, Options{Lanes: 2})
	batches := loadOnLanes(t, all, m)

	begin := time.Now()
	ended := make(chan error, 2)
	for i, e := range all {
		go func() { ended <- device.Execute(e, batches[i]) }()
	}
	if err := errors.Join(<-ended, <-ended); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < alone || took > 2*alone {
		t.Errorf("two batches took %v, want %v at least and less than %v", took, alone, 2*alone)
	}
	if c := all[0].Capabilities(); c.Kind != "emulated/lanes-2" || c.Memory != memoryBytes/2 {
		t.Errorf("kind %q with %d bytes", c.Kind, c.Memory)
	}
}

// TestAFaultIsTheDevices: a planned fault counts the batches of all lanes, and all lanes have it.
func TestAFaultIsTheDevices(t *testing.T) {
	m := testModels(t)[0]
	all := openLanes(t, Options{Lanes: 2, Plan: Planned{After: 2, Fault: Lost}})
	batches := loadOnLanes(t, all, m)
	for n := range 5 {
		if err := device.Execute(all[n%2], batches[n%2]); errors.Is(err, device.ErrLost) != (n >= 2) {
			t.Errorf("batch %d: %v", n, err)
		}
	}
}
