package regions

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"downbeat.dev/cuda"
	"downbeat.dev/cuda/cudatest"
)

func TestMain(m *testing.M) {
	cudatest.ServeOwner()
	goleak.VerifyTestMain(m)
}

// TestRegion reads another process's block, in pieces if it is long, and that process sees what the test writes.
// Nothing stays open.
func TestRegion(t *testing.T) {
	content := make([]byte, 2*pieceMax+100)
	for i := range content {
		content[i] = byte(i * 7 / 5)
	}
	owner := cudatest.StartOwner(t, content)
	var s Devices
	r, err := s.OpenRegion(owner.Handle, 0, int64(len(content)))
	must(t, err)

	got := make([]byte, len(content)-3)
	if n, err := r.ReadAt(got, 3); n != len(got) || err != nil || !bytes.Equal(got, content[3:]) {
		t.Errorf("read %d: %v, equal: %v", n, err, bytes.Equal(got, content[3:]))
	}

	patch := bytes.Repeat([]byte{0xa5}, pieceMax+9)
	if n, err := r.WriteAt(patch, 17); n != len(patch) || err != nil {
		t.Errorf("wrote %d: %v", n, err)
	}
	copy(content[17:], patch)
	if !bytes.Equal(owner.Content(), content) {
		t.Error("the owner has something else than what was written")
	}

	// Accesses beyond a region fail.
	for _, at := range []int64{-1, int64(len(content)), int64(len(content)) - 1} {
		if n, err := r.WriteAt([]byte{1, 2}, at); n != 0 || err == nil || !strings.Contains(err.Error(), "the region has 8388708 bytes") {
			t.Errorf("at %d: %d %v", at, n, err)
		}
	}
	if n, err := r.ReadAt(nil, int64(len(content))); n != 0 || err != nil {
		t.Errorf("no bytes at the end: %d %v", n, err)
	}

	must(t, r.Close())
	must(t, s.Close())

	// The emulated driver maps the owner's file; a GPU's driver maps no file of this name.
	maps, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	if strings.Contains(string(maps), "memfd:hostgpu") {
		t.Error("the owner's block is still mapped")
	}
}

// TestOpenRegionRefuses shows that invalid handles and sizes are refused, and that a refusal leaves nothing open.
func TestOpenRegionRefuses(t *testing.T) {
	owner := cudatest.StartOwner(t, make([]byte, 64))
	var s Devices
	var none cuda.Handle
	for name, c := range map[string]struct {
		handle cuda.Handle
		device int
		size   int64
		want   string
	}{
		"no handle": {none, 0, 8, "open shared memory: "},
		"no device": {owner.Handle, 99, 8, "open device 99"},
		"too large": {owner.Handle, 0, 1 << 40, "byte_size 1099511627776: must be 1 to "},
		"no bytes":  {owner.Handle, 0, 0, "byte_size 0: must be 1 to "},
	} {
		if _, err := s.OpenRegion(c.handle, c.device, c.size); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}

	// A process cannot open its own block, and its device stays usable.
	d, err := s.openDevice(0)
	must(t, err)
	m, err := d.Alloc(64)
	must(t, err)
	h, err := m.Share()
	must(t, err)
	if _, err := s.OpenRegion(h, 0, 8); !errors.Is(err, cuda.ErrOwnMemory) || d.Err() != nil {
		t.Errorf("%v, the device: %v", err, d.Err())
	}
	m.Free()

	// The same block twice: each region is closed separately.
	a, err := s.OpenRegion(owner.Handle, 0, 64)
	must(t, err)
	b, err := s.OpenRegion(owner.Handle, 0, 8)
	must(t, err)
	must(t, a.Close())
	if _, err := b.ReadAt(make([]byte, 8), 0); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err == nil || !strings.Contains(err.Error(), "Shared:1") {
		t.Errorf("with a region open: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
