package devicetest

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/model"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/repo"
)

// SlotBytesMax is the limit that test models are laid out under.
const SlotBytesMax = 64 << 20

// Emulated describes an emulated model: ℓ(b) = alpha·b + beta.
func Emulated(t testing.TB, name string, batchMax int, alpha, beta time.Duration, in, out []model.Tensor) *device.Model {
	t.Helper()
	c := &repo.Config{Name: name, Platform: repo.PlatformEmulated, BatchMax: batchMax, Emulated: repo.Linear{Alpha: alpha, Beta: beta}}
	for _, x := range in {
		c.Inputs = append(c.Inputs, repo.TensorConfig{Tensor: x})
	}
	for _, x := range out {
		c.Outputs = append(c.Outputs, repo.TensorConfig{Tensor: x})
	}
	m, err := device.NewModel(&repo.Model{Name: name, Version: "1", Platform: repo.PlatformEmulated, SLO: time.Minute,
		BatchMax: batchMax, Batched: true, Inputs: in, Outputs: out, Config: c}, 0, SlotBytesMax)
	if err != nil {
		t.Fatal(err)
	}
	if m.Profile, err = profile.Linear(alpha, beta, batchMax); err != nil {
		t.Fatal(err)
	}
	return m
}

// Slots maps n slots of memory outside the garbage collector's reach, freed when the test ends.
func Slots(t testing.TB, n, size int) []*device.Slot {
	t.Helper()
	var slots []*device.Slot
	for i := range n {
		memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Munmap(memory) })
		slots = append(slots, device.NewSlot(i, memory))
	}
	return slots
}

// SetInput puts an input payload into row i.
func SetInput(m *device.Model, s *device.Slot, i int, payload []byte) {
	for k, in := range m.Inputs {
		copy(s.InputRow(m, k, i), payload[in.Offset:][:in.Bytes])
	}
}

// Output returns a copy of row i's output payload.
func Output(m *device.Model, s *device.Slot, i int) []byte {
	var out []byte
	for k := range m.Outputs {
		out = append(out, s.OutputRow(m, k, i)...)
	}
	return slices.Clip(out)
}
