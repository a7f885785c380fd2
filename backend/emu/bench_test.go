package emu

import (
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/core/model"
)

// BenchmarkExecute measures the cost of emulating a batch besides ℓ(b), which is a nanosecond here.
func BenchmarkExecute(b *testing.B) {
	m := devicetest.Emulated(b, "m", 1, time.Nanosecond, 0, []model.Tensor{tensor("x", "UINT8", 16)}, []model.Tensor{tensor("y", "UINT8", 64)})
	e, err := New()
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	slots := devicetest.Slots(b, 1, device.SlotBytes([]*device.Model{m}))
	if err := devicetest.Load(e, m, slots); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := device.Execute(e, device.Batch{Model: m, Slot: slots[0], Rows: 1}); err != nil {
			b.Fatal(err)
		}
	}
}
