package backend

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/core/model"
)

// TestALaneWithoutAProfileIsPlannedAsIfLanesTookTurns: measured while the other lanes of a GPU rest, ℓ(b) counts as many
// times. Lanes of the processor have threads of their own.
func TestALaneWithoutAProfileIsPlannedAsIfLanesTookTurns(t *testing.T) {
	m := devicetest.Emulated(t, "m", 2, time.Millisecond, 0, []model.Tensor{tensor("x", "FP32", 1)}, []model.Tensor{tensor("y", "FP32", 1)})
	slot := devicetest.Slots(t, 1, device.SlotBytes([]*device.Model{m}))[0]
	alone := func(b device.Batch) (time.Duration, error) { return time.Duration(b.Rows) * time.Millisecond, nil }

	for _, c := range []struct {
		gpus  bool
		lanes int
		want  time.Duration
	}{{true, 1, 2 * time.Millisecond}, {true, 3, 6 * time.Millisecond}, {false, 3, 2 * time.Millisecond}} {
		o := Options{GPUs: c.gpus, Lanes: c.lanes, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
		p, err := o.measureQuick(t.Context(), alone, m, slot)
		if err != nil || p.Exec(2) != c.want {
			t.Errorf("%+v: ℓ(2) is %v, %v; want %v", c, p.Exec(2), err, c.want)
		}
	}
}
