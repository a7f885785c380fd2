package device_test

import (
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
)

func tensor(name string, datatype model.Datatype, shape ...int64) model.Tensor {
	return model.Tensor{Name: name, Datatype: datatype, Shape: shape}
}

func source(batchMax int, in, out model.Tensor) *repo.Model {
	return &repo.Model{Name: "m", Version: "1", BatchMax: batchMax, Batched: true, Inputs: []model.Tensor{in}, Outputs: []model.Tensor{out},
		Config: &repo.Config{Inputs: []repo.TensorConfig{{Tensor: in}}, Outputs: []repo.TensorConfig{{Tensor: out}}}}
}

// TestLayout checks invariants D1 and D2: rows of a tensor are contiguous, tensors aligned, and no byte of a slot
// belongs to two of them.
func TestLayout(t *testing.T) {
	m := devicetest.Emulated(t, "m", 5, time.Millisecond, 0,
		[]model.Tensor{tensor("a", "UINT8", 3, 7), tensor("b", "FP16", 5), tensor("c", "BOOL", 1)},
		[]model.Tensor{tensor("x", "FP32", 2, 3), tensor("y", "INT64", 1)})
	if m.InBytes != 21+10+1 || m.OutBytes != 24+8 || m.Inputs[2].Offset != 31 || m.Outputs[1].Offset != 24 {
		t.Fatalf("payloads of %d and %d bytes: %+v %+v", m.InBytes, m.OutBytes, m.Inputs, m.Outputs)
	}
	s := devicetest.Slots(t, 1, device.SlotBytes([]*device.Model{m}))[0]
	if err := s.Fits(m); err != nil {
		t.Fatal(err)
	}
	owner := map[*byte]string{}
	claim := func(name string, rows func(n int) []byte, row func(i int) []byte, size int) {
		if at := uintptr(unsafe.Pointer(&rows(1)[0])); at%device.Align != 0 {
			t.Errorf("tensor %s begins at %#x", name, at)
		}
		for i := range 5 {
			r := row(i)
			if len(r) != size || &r[0] != &rows(5)[i*size] || cap(r) != size {
				t.Errorf("tensor %s: row %d is not row %d of the batch", name, i, i)
			}
			for j := range r {
				if other, taken := owner[&r[j]]; taken {
					t.Fatalf("tensors %s and %s share a byte", name, other)
				}
				owner[&r[j]] = name
			}
		}
	}
	for k, x := range m.Inputs {
		claim(x.Name, func(n int) []byte { return s.Input(m, k, n) }, func(i int) []byte { return s.InputRow(m, k, i) }, x.Bytes)
	}
	for k, x := range m.Outputs {
		claim(x.Name, func(n int) []byte { return s.Output(m, k, n) }, func(i int) []byte { return s.OutputRow(m, k, i) }, x.Bytes)
	}
}

func TestCopyRow(t *testing.T) {
	m := devicetest.Emulated(t, "m", 2, time.Millisecond, 0, []model.Tensor{tensor("a", "UINT8", 3), tensor("b", "UINT8", 2)}, []model.Tensor{tensor("x", "FP32", 1)})
	slots := devicetest.Slots(t, 2, device.SlotBytes([]*device.Model{m}))
	devicetest.SetInput(m, slots[0], 1, []byte("abcde"))
	slots[1].CopyRow(m, 0, slots[0], 1)
	if got := string(slots[1].InputRow(m, 0, 0)) + string(slots[1].InputRow(m, 1, 0)); got != "abcde" {
		t.Errorf("got %q", got)
	}
}

func TestBatchMaxIsBounded(t *testing.T) {
	in, out := tensor("a", "UINT8", 1000), tensor("x", "FP32", 1)
	for _, c := range []struct{ own, asked, slot, want int }{
		{32, 0, 1 << 20, 32}, {32, 8, 1 << 20, 8}, {32, 64, 1 << 20, 32}, {32, 0, 10_000, 9}, {1, 0, 10_000, 1},
	} {
		m, err := device.NewModel(source(c.own, in, out), c.asked, c.slot)
		if err != nil {
			t.Fatal(err)
		}
		if m.BatchMax != c.want || device.SlotBytes([]*device.Model{m}) > c.slot || int(m.Info().BatchMax) != c.want {
			t.Errorf("own limit %d, asked %d, slots of %d: batches up to %d in %d bytes, want %d", c.own, c.asked, c.slot, m.BatchMax, device.SlotBytes([]*device.Model{m}), c.want)
		}
	}
}

func TestPackedRows(t *testing.T) {
	m, err := device.NewModel(source(4, tensor("text", "BYTES", 2), tensor("y", "FP32", 3)), 0, 32<<20)
	if err != nil {
		t.Fatal(err)
	}
	if !m.Varies || len(m.Inputs) != 1 || len(m.Outputs) != 1 || m.InParts[0].Name != "text" || m.OutParts[0].Bytes != 12 {
		t.Fatalf("%+v", m)
	}
	if m.Takes(0) || !m.Takes(1) || !m.Takes(m.InBytes) || m.Takes(m.InBytes+1) {
		t.Error("payloads of 1 byte to InBytes must fit, no others")
	}
	s := device.NewSlot(0, make([]byte, device.SlotBytes([]*device.Model{m})))
	row := s.InputRow(m, 0, 3)
	in, err := device.SetPacked(row, 5)
	if err != nil || len(in) != 5 || cap(in) != 5 {
		t.Fatalf("%d of %d bytes, %v", len(in), cap(in), err)
	}
	copy(in, "hello")
	s.CopyRow(m, 1, s, 3)
	if got, ok := device.Packed(s.InputRow(m, 0, 1)); !ok || string(got) != "hello" {
		t.Errorf("%q %v", got, ok)
	}
	if _, err := device.SetPacked(row, m.InBytes+1); err == nil || !strings.Contains(err.Error(), "must be at most") {
		t.Errorf("a payload larger than the room must be refused: %v", err)
	}
	if device.SetNoOutput(row); len(row) == 0 {
		t.Error("no row")
	}
	if _, ok := device.Packed(row); ok {
		t.Error("a row without an output must say so")
	}
}

func TestNewModelRefuses(t *testing.T) {
	good := tensor("x", "FP32", 1)
	for want, m := range map[string]*repo.Model{
		`input "text": datatype "TEXT"`:    source(1, tensor("text", "TEXT", 1), good),
		`output "y": shape [-1 3]`:         source(1, good, tensor("y", "FP32", -1, 3)),
		`input "huge": shape [4294967296`:  source(1, tensor("huge", "FP32", 1<<32, 1<<32), good),
		"one row takes 2000064 bytes, the": source(4, tensor("large", "UINT8", 2_000_000), good),
	} {
		if _, err := device.NewModel(m, 0, 1<<20); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

// TestPages checks that slots get whole pages that no other slot has, wherever the memory begins.
func TestPages(t *testing.T) {
	page := os.Getpagesize()
	memory := make([]byte, 10*page)
	for _, size := range []int{1, page - 1, page, page + 1, 3 * page} {
		for _, at := range []int{0, 1, 64, page - 1, page} {
			p := device.Pages(memory[at : at+device.PagedBytes(size)])
			if start := uintptr(unsafe.Pointer(&p[0])); len(p) < size || len(p)%page != 0 || start%uintptr(page) != 0 {
				t.Errorf("%d bytes from %d on: %d bytes at %#x", size, at, len(p), start)
			}
		}
	}
}
